// What a call of an operator is like: all that its work may depend on, but for what its operands hold and where they
// are. Calls of one kind ask the same of the device (replay.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <string_view>

namespace anyxpu {

class CallKind {
 public:
  // False: a call of no kind.
  bool read(at::ArrayRef<c10::IValue> given);

  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(words_[0])};
  }

  c10::SmallVector<const at::Tensor*, 8> tensors;  // of the device
  c10::DeviceIndex device = -1;

 private:
  void add(int64_t word) { words_.push_back(word); }
  template <class List>
  bool list(char tag, const List& elements);
  bool value(const c10::IValue& value);
  bool tensor(const at::Tensor& t);
  bool host_number(const at::Tensor& t);

  c10::SmallVector<int64_t, 128> words_;
};

}  // namespace anyxpu
