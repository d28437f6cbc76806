// Boxed arguments of operators: the tensors in them, and what an operator is called.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

namespace anyxpu {

inline std::string full_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Which argument a result is, by the schema's alias sets; nullopt for a result of its own.
inline std::optional<size_t> returned_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->isWrite() && info->beforeSets() == result.alias_info()->beforeSets()) return i;
  }
  return std::nullopt;
}

inline bool on_xpu(const at::Tensor& t) { return t.defined() && t.device().type() == c10::DeviceType::XPU; }

// Calls visit(tensor) for each defined tensor in a value: itself, or an element of a list, optional or not.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

// The same value with each defined tensor replaced by map(tensor).
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, Map map) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(map(value.toTensor())) : value;
  if (!value.isList()) return value;
  const auto list = value.toList();
  bool any = false;
  for_each_tensor(value, [&](const at::Tensor&) { any = true; });
  if (!any) return value;
  c10::impl::GenericList mapped(list.elementType());
  mapped.reserve(list.size());
  for (const c10::IValue& element : value.toListRef()) mapped.push_back(map_tensors(element, map));
  return mapped;
}

}  // namespace anyxpu
