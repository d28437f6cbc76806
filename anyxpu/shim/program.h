// What was made of recordings of one kind of call: the steps that a call asks of the device, and its results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <memory>
#include <utility>
#include <vector>

#include "shim/ops.h"
#include "shim/recording.h"

namespace anyxpu {

struct Result {
  enum Which : uint8_t { constant, host, input, fresh } which = constant;
  c10::IValue value;   // a constant: an undefined tensor, a number, None; or a small tensor of the host's
  uint32_t index = 0;  // of the input, or of a new tensor's memory
  bool empty = false;  // a new tensor without memory
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  size_t storage_bytes = 0;

  bool same(const Result& other) const {
    const auto facts = [](const Result& r) {
      return std::tie(r.which, r.index, r.empty, r.dtype, r.sizes, r.strides, r.offset, r.storage_bytes);
    };
    if (facts(*this) != facts(other)) return false;
    if (which == host) {
      const at::Tensor &a = value.toTensor(), &b = other.value.toTensor();
      return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.equal(b);
    }
    if (which != constant || value.tagKind() != other.value.tagKind()) return which != constant;
    if (value.isTensor() || value.isNone()) return true;
    return value == other.value;
  }
};

// An operand without memory that was given some, as out= of a new operator's result is.
struct Grown {
  uint32_t input;
  Result into;
  bool same(const Grown& other) const { return input == other.input && into.same(other.into); }
};

template <class T>
bool all_same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const T& x, const T& y) { return x.same(y); });
}

struct Program {
  std::vector<Step> steps;
  std::vector<Asked> questions;
  std::vector<Result> results;
  std::vector<Grown> grown;
  std::vector<std::shared_ptr<Tally>> tallies;
  std::vector<std::pair<OpCounter*, Way>> counts;
  uint32_t memories = 0, draws = 0;
  ax_queue* queue = nullptr;              // the only one that it can run on, where it is bound to one
  std::vector<pybind11::object> objects;  // what the steps' kernels and primitives belong to

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (objects.empty()) return;
    const pybind11::gil_scoped_acquire gil;
    objects.clear();
  }

  bool same(const Program& other) const {
    return steps == other.steps && questions == other.questions && queue == other.queue && tallies == other.tallies &&
           counts == other.counts && all_same(results, other.results) && all_same(grown, other.grown);
  }
};

// What operands were like before a call.
struct Before {
  const void* address;
  size_t storage_bytes;
  std::vector<int64_t> sizes, strides;

  explicit Before(const at::Tensor& t)
      : address(t.const_data_ptr()),
        storage_bytes(t.storage().nbytes()),
        sizes(t.sizes().vec()),
        strides(t.strides().vec()) {}
  bool holds(const at::Tensor& t) const {
    return t.const_data_ptr() == address && t.storage().nbytes() == storage_bytes &&
           t.sizes() == at::IntArrayRef(sizes) && t.strides() == at::IntArrayRef(strides);
  }
};

// nullptr where the recording makes none; it is spoilt then. `inputs` are what the recording has, `before` what they
// were like.
std::shared_ptr<Program> program_of(Recording& recording, at::ArrayRef<Before> before,
                                    at::ArrayRef<const at::Tensor*> inputs, at::ArrayRef<c10::IValue> results,
                                    ax_queue* queue);

// Whether a program does what this call asks: it may be bound to another queue, or to kept copies that are not there.
bool fits(const Program& program, at::ArrayRef<const at::Tensor*> inputs, ax_queue* queue);
// Runs it on the current stream of the operands' device, which is the current one, and puts its results on the stack.
void run(const Program& program, at::ArrayRef<const at::Tensor*> inputs, c10::DeviceIndex device, ax_queue* queue,
         torch::jit::Stack* stack);

// What a call has asked for copies, and those around it: of the calling thread's innermost one, from here to its end.
class Answers {
 public:
  Answers();
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  const KeptCopy* find(const at::Tensor& tensor, uint64_t form, ax_queue* queue) const;
  const KeptCopy& add(const at::Tensor& tensor, uint64_t form, ax_queue* queue, KeptCopy answer);

 private:
  struct Answer {
    const void* address;
    uint64_t form;
    ax_queue* queue;
    KeptCopy copy;
  };
  c10::SmallVector<Answer, 2> all_;
  Answers* const outer_;
};

// find_copy for an operator's Python function: what this call has already asked is not asked again, as the question
// itself has a meaning (onednn/packing.py).
KeptCopy ask_for_copy(const at::Tensor& tensor, uint64_t form, ax_queue* queue);

}  // namespace anyxpu
