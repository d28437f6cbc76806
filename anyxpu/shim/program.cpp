#include "shim/program.h"

#include <algorithm>

#include "shim/allocator.h"
#include "shim/assertions.h"
#include "shim/primitives.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr int64_t kHostNumbers = 4;  // in a tensor of the host's that a call makes, the same each time

// --- made of a recording ------------------------------------------------------------------------------------------
// A tensor that the call made. nullopt where it is none, or not one that can be made again.
std::optional<Result> new_tensor(const Tensor& t, const Recording& recording) {
  Result made;
  const bool plain = t.is_xpu() && t.layout() == c10::kStrided && !t.is_conj() && !t.is_neg() && !t.is_nested() &&
                     !t.is_quantized() && !t._is_zerotensor() && !t.unsafeGetTensorImpl()->is_python_dispatch() &&
                     !t.unsafeGetTensorImpl()->is_wrapped_number();
  if (!plain) return std::nullopt;
  made.which = Result::fresh;
  made.empty = t.storage().nbytes() == 0;
  if (!made.empty) {
    const auto memory = recording.memory_at(t.storage().data());
    if (!memory) return std::nullopt;
    made.index = *memory;
  }
  made.dtype = t.scalar_type();
  made.sizes = t.sizes().vec();
  made.strides = t.strides().vec();
  made.offset = t.storage_offset();
  made.storage_bytes = t.storage().nbytes();
  return made;
}

std::optional<Result> result_of(const IValue& value, at::ArrayRef<const Tensor*> inputs, const Recording& recording) {
  Result made;
  if (!value.isTensor()) {
    if (!(value.isNone() || value.isInt() || value.isDouble() || value.isBool())) return std::nullopt;
    made.value = value;
    return made;
  }
  const Tensor& t = value.toTensor();
  if (!t.defined()) {
    made.value = value;
    return made;
  }
  for (uint32_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->unsafeGetTensorImpl() != t.unsafeGetTensorImpl()) continue;
    made.which = Result::input;
    made.index = i;
    return made;
  }
  if (t.is_cpu() && t.numel() <= kHostNumbers && t.storage().use_count() == 1 && t.is_contiguous()) {
    made.which = Result::host;
    made.value = t.clone();
    return made;
  }
  return new_tensor(t, recording);
}

// The operands that changed; spoils the recording where one did that had memory.
std::vector<Grown> grown_of(Recording& recording, at::ArrayRef<Before> before, at::ArrayRef<const Tensor*> inputs) {
  std::vector<Grown> all;
  for (uint32_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = *inputs[i];
    if (before[i].holds(t)) continue;
    const bool alone = std::none_of(inputs.begin(), inputs.end(), [&](const Tensor* other) {
      return other != inputs[i] && other->storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl();
    });
    auto into = new_tensor(t, recording);
    if (before[i].storage_bytes != 0 || !alone || !into || into->empty) {
      recording.spoil("an operand is another after the call");
      return {};
    }
    all.push_back({i, std::move(*into)});
  }
  return all;
}

// --- running one --------------------------------------------------------------------------------------------------
thread_local Answers* of_this_call = nullptr;

const KeptCopy& answer_to(const Asked& question, at::ArrayRef<const Tensor*> inputs, ax_queue* queue) {
  TORCH_INTERNAL_ASSERT(of_this_call != nullptr);
  const Tensor& tensor = *inputs[question.input];
  if (const KeptCopy* known = of_this_call->find(tensor, question.form, queue)) return *known;
  return of_this_call->add(tensor, question.form, queue, find_copy(tensor, question.form, queue));
}

class Run {
 public:
  Run(const Program& program, at::ArrayRef<const Tensor*> inputs, c10::DeviceIndex device, ax_queue* queue)
      : program_(program), inputs_(inputs), device_(device), queue_(queue) {
    memory_.resize(program.memories);
    drawn_.resize(program.draws);
    for (const Asked& question : program.questions) kept_.push_back(answer_to(question, inputs, queue).copy);
  }

  void steps() {
    for (const Step& step : program_.steps) {
      switch (step.kind) {
        case Step::allocate:
          memory_[step.index] = xpu_allocator()->allocate(step.amount);
          break;
        case Step::release:
          memory_[step.index].clear();
          break;
        case Step::launch:
          launch(step);
          break;
        case Step::copy:
          check(driver().copy(queue_, address(step.to), address(step.from), step.amount), "copy");
          break;
        case Step::fill:
          check(driver().fill(queue_, address(step.to), step.pattern.data(), static_cast<uint32_t>(step.pattern.size()),
                              step.amount),
                "fill");
          break;
        case Step::primitive:
          run(step);
          break;
        case Step::written:
          note_written(address(step.to));
          break;
        case Step::draw:
          drawn_[step.index] = philox_state(std::nullopt, step.amount, device_);
          break;
      }
    }
  }

  void results(Stack* stack) {
    for (const auto& tally : program_.tallies) tally->add();
    for (const auto& [counter, way] : program_.counts) counter->again(way);
    for (const Grown& each : program_.grown) {
      const Tensor& t = *inputs_[each.input];
      t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory_[each.into.index]));
      t.storage().unsafeGetStorageImpl()->set_nbytes(each.into.storage_bytes);
      t.unsafeGetTensorImpl()->set_sizes_and_strides(each.into.sizes, each.into.strides, each.into.offset);
    }
    c10::SmallVector<c10::Storage, 4> storages(program_.memories);
    for (const Result& result : program_.results) {
      if (result.which == Result::constant) {
        stack->push_back(result.value);
      } else if (result.which == Result::host) {
        stack->emplace_back(result.value.toTensor().clone());
      } else if (result.which == Result::input) {
        stack->emplace_back(*inputs_[result.index]);
      } else {
        stack->emplace_back(fresh(result, storages));
      }
    }
  }

 private:
  void* address(const Place& place) {
    char* base = nullptr;
    switch (place.kind) {
      case Place::nowhere:
        return nullptr;
      case Place::input:
        base = static_cast<char*>(inputs_[place.index]->mutable_data_ptr());
        break;
      case Place::memory:
        base = static_cast<char*>(memory_[place.index].mutable_get());
        break;
      case Place::kept:
        base = static_cast<char*>(kept_[place.index].mutable_data());
        break;
      case Place::assertions:
        return assertion_record(device_);
    }
    return base + place.offset;
  }

  void launch(const Step& step) {
    const size_t count = step.args.size();
    c10::SmallVector<void*, 32> pointers(count);
    c10::SmallVector<ax_arg, 32> args(count);
    for (size_t i = 0; i < count; ++i) {
      const Taken& taken = step.args[i];
      const void* value = taken.bytes.data();
      if (taken.kind == AX_ARG_POINTER) {
        pointers[i] = address(taken.place);
        value = &pointers[i];
      } else if (taken.drawn) {
        const auto& [seed, offset] = drawn_[taken.drawn->index];
        value = taken.drawn->part == Drawn::seed ? &seed : &offset;
      }
      args[i] = {taken.kind == AX_ARG_LOCAL ? nullptr : value, taken.size, static_cast<uint32_t>(taken.kind)};
    }
    const auto arg_count = static_cast<uint32_t>(count);
    const ax_status status = step.only ? launch_writing(address(*step.only), queue_, step.kernel, step.groups.data(),
                                                        step.local.data(), args.data(), arg_count, step.amount)
                                       : driver().launch(queue_, step.kernel, step.groups.data(), step.local.data(),
                                                         args.data(), arg_count, step.amount);
    check(status, "launch a kernel");
    note_work(queue_, device_, step.amount);
  }

  void run(const Step& step) {
    c10::SmallVector<uintptr_t, 12> addresses;
    for (const Taken& taken : step.args) addresses.push_back(reinterpret_cast<uintptr_t>(address(taken.place)));
    step.runs->run(step.stream, queue_, step.taken, addresses);
    note_work(queue_, device_, step.amount);
  }

  Tensor fresh(const Result& result, c10::SmallVector<c10::Storage, 4>& storages) {
    const auto make = [&](c10::DataPtr data) {
      return c10::Storage(c10::Storage::use_byte_size_t(), result.storage_bytes, std::move(data), xpu_allocator(),
                          /*resizable=*/true);
    };
    c10::Storage storage;
    if (result.empty) {
      storage = make(xpu_allocator()->allocate(0));
    } else {
      c10::Storage& shared = storages[result.index];
      if (!shared) shared = make(std::move(memory_[result.index]));
      storage = shared;
    }
    Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::XPU), c10::scalarTypeToTypeMeta(result.dtype));
    made.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes, result.strides, result.offset);
    return made;
  }

  const Program& program_;
  const at::ArrayRef<const Tensor*> inputs_;
  const c10::DeviceIndex device_;
  ax_queue* const queue_;
  c10::SmallVector<c10::DataPtr, 8> memory_;
  c10::SmallVector<c10::Storage, 2> kept_;
  c10::SmallVector<std::pair<uint64_t, uint64_t>, 2> drawn_;
};

}  // namespace

std::shared_ptr<Program> program_of(Recording& recording, at::ArrayRef<Before> before,
                                    at::ArrayRef<const Tensor*> inputs, at::ArrayRef<IValue> results, ax_queue* queue) {
  auto made = std::make_shared<Program>();
  std::vector<uint32_t> handed_out;
  for (const IValue& value : results) {
    auto result = result_of(value, inputs, recording);
    if (!result) {
      recording.spoil("a result that is no new tensor of the call's");
      return nullptr;
    }
    if (result->which == Result::fresh && !result->empty) handed_out.push_back(result->index);
    made->results.push_back(std::move(*result));
  }
  made->grown = grown_of(recording, before, inputs);
  for (const Grown& each : made->grown) handed_out.push_back(each.into.index);
  for (const uint32_t left : recording.left())
    if (std::find(handed_out.begin(), handed_out.end(), left) == handed_out.end())
      recording.spoil("memory that outlives the call");
  for (const Step& step : recording.steps)
    if (step.kind == Step::primitive && !step.taken) made->queue = queue;
  if (!recording.all_drawn_taken()) recording.spoil("random numbers");
  if (recording.spoilt() != nullptr) return nullptr;
  made->steps = std::move(recording.steps);
  made->tallies = std::move(recording.tallies);
  made->counts = std::move(recording.counts);
  made->questions = std::move(recording.questions);
  made->objects = std::move(recording.objects);
  made->memories = recording.memories;
  made->draws = recording.draws;
  return made;
}

bool fits(const Program& program, at::ArrayRef<const Tensor*> inputs, ax_queue* queue) {
  if (program.queue != nullptr && program.queue != queue) return false;
  for (const Asked& question : program.questions) {
    const KeptCopy& answer = answer_to(question, inputs, queue);
    if (static_cast<bool>(answer.copy) != question.found || answer.wanted != question.wanted) return false;
    if (!question.shared) continue;
    const void* copy = answer.copy.data();  // the next answer may move this one
    if (answer_to(program.questions[*question.shared], inputs, queue).copy.data() != copy) return false;
  }
  return true;
}

void run(const Program& program, at::ArrayRef<const Tensor*> inputs, c10::DeviceIndex device, ax_queue* queue,
         Stack* stack) {
  Run run(program, inputs, device, queue);
  run.steps();
  run.results(stack);
}

Answers::Answers() : outer_(std::exchange(of_this_call, this)) {}

Answers::~Answers() { of_this_call = outer_; }

const KeptCopy* Answers::find(const Tensor& tensor, uint64_t form, ax_queue* queue) const {
  for (const Answer& each : all_)
    if (each.address == tensor.const_data_ptr() && each.form == form && each.queue == queue) return &each.copy;
  return outer_ == nullptr ? nullptr : outer_->find(tensor, form, queue);
}

const KeptCopy& Answers::add(const Tensor& tensor, uint64_t form, ax_queue* queue, KeptCopy answer) {
  all_.push_back({tensor.const_data_ptr(), form, queue, std::move(answer)});
  return all_.back().copy;
}

KeptCopy ask_for_copy(const at::Tensor& tensor, uint64_t form, ax_queue* queue) {
  const KeptCopy* known = of_this_call == nullptr ? nullptr : of_this_call->find(tensor, form, queue);
  KeptCopy found = known == nullptr ? find_copy(tensor, form, queue) : *known;
  if (the_recording != nullptr) the_recording->asked(tensor, form, queue, found);
  return found;
}

}  // namespace anyxpu
