// Kernels of signature classes: asked of Python once and kept (ops/classes.py makes them), and what they are launched
// with.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "shim/runtime.h"

namespace anyxpu {

// --- types ----------------------------------------------------------------------------------------------------
// What is computed with, by the common type.
enum Kinds : uint8_t { kFloats = 1, kIntegers = 2, kBools = 4 };

struct TypeName {
  c10::ScalarType type;
  const char* name;  // Triton's
  Kinds kind;
};
// nullptr: no kernel has such elements.
const TypeName* type_of(c10::ScalarType type);

// A number's bytes, as the kernel takes them.
struct Number {
  alignas(8) char bytes[8];
  uint32_t size;
};

template <typename T>
Number number_of(T value) {
  Number made{};
  std::memcpy(made.bytes, &value, sizeof(T));
  made.size = sizeof(T);
  return made;
}
// `value` as the type that is computed in where operands have `common` in common. `rounded`: to 16 bits first, where
// that is it.
Number number(const c10::Scalar& value, c10::ScalarType common, bool rounded);

// --- kernels --------------------------------------------------------------------------------------------------
struct Entry {
  ax_kernel* kernel;    // nullptr: the device does not run it
  uint32_t lanes;       // of a work-group
  uint64_t operations;  // of a work-group whose loops go round once
  int32_t assertions;   // their number, where the kernel checks something; else -1
};

// Asks Python for the kernel of `family` that `words` name; a class of its own for each of them. False where there is
// none yet, and the host is to serve meanwhile.
bool ask_kernel(c10::DeviceIndex device, const char* family, const pybind11::tuple& words, Entry* out);

// Kernels by a key that says all their words. Lives as long as the process.
class ClassCache {
 public:
  // The kernel of `key`, which `ask(&entry)` gets where it is not known. False where there is none, or not yet.
  template <class Ask>
  bool find(const std::string& key, Entry* out, const Ask& ask) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = made_.find(key); found != made_.end()) {
        *out = found->second;
        return out->kernel != nullptr;
      }
    }
    {
      // Not under the lock: it compiles, and another thread may hold the GIL and want this lock.
      const pybind11::gil_scoped_acquire gil;
      if (!ask(out)) return false;
    }
    const std::unique_lock lock(mutex_);
    *out = made_.try_emplace(key, *out).first->second;
    return out->kernel != nullptr;
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::string, Entry> made_;
};

// Where kernels of a namespace are registered on a key; never destroyed.
torch::Library& library_of(const std::string& name_space, c10::DispatchKey key);

// Puts a boxed kernel, which `make()` makes, on key XPU for the operator `name`. False where this torch has none of
// that name.
template <class Make>
bool serve_boxed(const std::string& name, const Make& make) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!op) return false;
  const size_t colons = name.find("::");
  library_of(name.substr(0, colons), c10::DispatchKey::XPU)
      .impl(name.substr(colons + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(make()));
  return true;
}

// What a launch takes, in order.
class Arguments {
 public:
  static constexpr size_t kMost = 64;

  void pointer(const void* address) {
    slots_[count_] = number_of(address);
    args_[count_] = {slots_[count_].bytes, sizeof(address), AX_ARG_POINTER};
    ++count_;
  }
  void value(const Number& number) {
    slots_[count_] = number;
    args_[count_] = {slots_[count_].bytes, number.size, AX_ARG_VALUE};
    ++count_;
  }
  void integer(int64_t n) { value(number_of(static_cast<int32_t>(n))); }

  // Launches on the device's current stream. `written`: where alone the kernel writes.
  void launch(c10::DeviceIndex device, const Entry& entry, int64_t groups, uint64_t operations, const void* written,
              const char* what);

 private:
  std::array<Number, kMost> slots_;  // args_ points into it
  std::array<ax_arg, kMost> args_;
  uint32_t count_ = 0;
};

}  // namespace anyxpu
