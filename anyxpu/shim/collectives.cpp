// torch.distributed's collectives on device memory, by whatever backend serves the CPU (gloo).
//
// They go on after they return, so the host path, which carries back what was written when the kernel returns, would
// come too early; and their schemas do not say which tensors they write. Here the CPU's view of the device's memory
// goes through the collective where the host reaches it; else a copy does, and what was written is carried back before
// the Work that the caller holds counts as done.
//
// A group's backend "xccl" is xccl.h's: between GPUs with oneCCL it enqueues the collectives. The others it hands on to
// a group of its own over gloo, and what gloo lacks is made of what it has.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "shim/arguments.h"
#include "shim/assertions.h"
#include "shim/kept_copies.h"
#include "shim/ops.h"
#include "shim/xccl.h"

namespace anyxpu {
namespace {

using at::Tensor;
using c10::IValue;
using c10d::Work;
using Future = c10::ivalue::Future;
using torch::jit::Stack;
using WorkPointer = c10::intrusive_ptr<Work>;
using FuturePointer = c10::intrusive_ptr<Future>;

enum class Use : uint8_t { read, written, both };

struct Argument {
  std::string_view name;
  Use use;
};

// How a collective uses its tensors, by the names of its arguments; `tensors` is both but for the one that sends.
constexpr std::array<Argument, 11> kUses{{
    {"tensors", Use::both},
    {"tensor", Use::read},  // of a barrier, which moves nothing
    {"input_tensor", Use::read},
    {"input_tensors", Use::read},
    {"inputs", Use::read},
    {"input", Use::read},
    {"output_tensor", Use::written},
    {"output_tensors", Use::written},
    {"outputs", Use::written},
    {"output", Use::written},
    {"output_lists", Use::written},
}};

Use use_of(std::string_view op, std::string_view argument) {
  if (op == "c10d::send") return Use::read;
  for (const Argument& known : kUses)
    if (known.name == argument) return known.use;
  return Use::both;
}

struct Pair {
  Tensor device, host;
  bool written;
};

// Of the elements that a collective leaves as they are the old values have to come back too.
Tensor host_copy(const Tensor& t, Use use) {
  const bool all_written = use == Use::written && t.is_non_overlapping_and_dense();
  return all_written ? at::empty_like(t, t.options().device(c10::kCPU)) : t.detach().to(c10::kCPU);
}

void release_storage(void* storage) { delete static_cast<c10::Storage*>(storage); }

// The device's own memory as a CPU tensor, which keeps it.
Tensor host_view(const Tensor& t) {
  auto* kept = new c10::Storage(t.storage());
  c10::DataPtr bytes(kept->mutable_data(), kept, &release_storage, c10::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), kept->nbytes(), std::move(bytes), nullptr, false);
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

// Gloo parts these along their first dimension; NCCL and oneCCL see a row of elements, of whatever shape.
bool is_of_rows(std::string_view op) {
  return op == "c10d::_allgather_base_" || op == "c10d::_reduce_scatter_base_" ||
         op == "c10d::allgather_into_tensor_coalesced_" || op == "c10d::reduce_scatter_tensor_coalesced_";
}

void carry_back(const std::vector<Pair>& pairs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Pair& pair : pairs) {
    if (!pair.written) continue;
    const c10::DeviceGuard guard(pair.device.device());
    Tensor there = pair.device;
    copy_tensor(there, pair.host.view(there.sizes()), /*non_blocking=*/false);
  }
}

std::vector<Tensor> written(const std::vector<Pair>& pairs) {
  std::vector<Tensor> tensors;
  for (const Pair& pair : pairs)
    if (pair.written) tensors.push_back(pair.device);
  return tensors;
}

// The same memory without the caller's Python objects. The backend's thread lets go of a work after its waiters have
// gone on; where that drops the last reference beside Python's it takes the GIL, which ends the process if the
// interpreter is just finishing.
std::vector<Pair> without_python(std::vector<Pair> pairs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (Pair& pair : pairs) pair.device = pair.device.detach();
  return pairs;
}

// Done when `work` is and what it wrote lies on the device; holds all the tensors until then.
FuturePointer arriving(const WorkPointer& work, std::vector<Pair> pairs) {
  FuturePointer host;
  try {
    host = work->getFuture();
  } catch (const std::exception&) {
    // Works of one sender and one receiver have none.
  }
  if (host) {
    return host->then(
        [work, pairs = std::move(pairs)](Future& done) {
          done.value();  // throws what the collective failed with
          carry_back(pairs);
          return IValue(written(pairs));
        },
        c10::ListType::ofTensors());
  }
  auto made = c10::make_intrusive<Future>(c10::ListType::ofTensors());
  std::thread([work, made, pairs = std::move(pairs)] {
    try {
      work->wait();
      carry_back(pairs);
      made->markCompleted(IValue(written(pairs)));
    } catch (...) {
      made->setError(std::current_exception());
    }
  }).detach();
  return made;
}

// A work of the host on the device's own memory; what it says of its results are the device's tensors.
class OnDevice final : public Work {
 public:
  OnDevice(WorkPointer work, std::vector<Pair> pairs)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)), pairs_(std::move(pairs)) {}
  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<Tensor> result() override { return written(pairs_); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return work_->wait(timeout); }
  void blockCurrentStream() override { work_->blockCurrentStream(); }
  void abort() override { work_->abort(); }
  FuturePointer getFuture() override {
    return work_->getFuture()->then(
        [pairs = pairs_](Future& done) {
          done.value();  // throws what the collective failed with
          return IValue(written(pairs));
        },
        c10::ListType::ofTensors());
  }
  FuturePointer getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  WorkPointer work_;
  std::vector<Pair> pairs_;
};

void serve(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::string name = full_name(op);
  Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  for (size_t i = 0; i < count; ++i) {
    if (use_of(name, schema.arguments()[i].name()) == Use::read) continue;
    for_each_tensor(given[i], [](const Tensor& t) {
      if (on_xpu(t)) note_written(t.const_data_ptr());
    });
  }
  if (Stack results; enqueue_between_gpus(schema, given, results)) {
    op_counter(name).add(Way::library);
    torch::jit::drop(*stack, count);
    stack->insert(stack->end(), results.begin(), results.end());
    return;
  }
  if (for_host_group(name, schema, given)) {
    torch::jit::drop(*stack, count);
    stack->insert(stack->end(), given.begin(), given.end());
    if (name == "c10d::alltoall_") return all_to_all(stack);
  }
  c10::DeviceIndex device = -1;
  for (const IValue& value : given) {
    for_each_tensor(value, [&](const Tensor& t) {
      if (device < 0 && on_xpu(t)) device = t.device().index();
    });
  }
  if (device < 0) return host_fallback(op, stack);

  op_counter(name).add(Way::host);
  const bool reached = host_reaches(device);
  const c10::DeviceGuard guard(xpu_device(device));
  if (reached) wait_for(current_queue(device), device, "wait for the stream before a collective");
  std::vector<Pair> pairs;
  Stack arguments;
  for (size_t i = 0; i < count; ++i) {
    const Use use = use_of(name, schema.arguments()[i].name());
    arguments.push_back(map_tensors(given[i], [&](const Tensor& t) {
      if (!on_xpu(t)) return t;
      Tensor host = reached ? host_view(t) : host_copy(t, use);
      if (is_of_rows(name) && host.is_contiguous()) host = host.view(-1);
      pairs.push_back({t, std::move(host), use != Use::read});
      return pairs.back().host;
    }));
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
  }
  torch::jit::drop(*stack, count);
  for (IValue& result : arguments) {
    if (result.isCustomClass()) {
      const auto work = result.toCustomClass<Work>();
      auto kept = without_python(pairs);
      stack->push_back(IValue(reached ? WorkPointer(c10::make_intrusive<OnDevice>(work, std::move(kept)))
                                      : Work::create_from_future(arriving(work, std::move(kept)))));
      continue;
    }
    stack->push_back(map_tensors(result, [&](const Tensor& t) {
      for (const Pair& pair : pairs)
        if (pair.host.is_same(t)) return pair.device;
      return t;
    }));
  }
}

void collective(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto place = *schema.argumentIndexWithName("process_group");
  const IValue group = (*stack)[stack->size() - schema.arguments().size() + static_cast<size_t>(place)];
  serve(op, stack);
  if (!stack->empty() && stack->back().isCustomClass()) coalesce(group, stack->back().toCustomClass<Work>());
}

}  // namespace

TORCH_LIBRARY_IMPL(c10d, XPU, library) {
  for (const char* name : {"allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
                           "allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_", "barrier", "broadcast_",
                           "gather_", "recv_", "recv_any_source_", "reduce_", "reduce_scatter_",
                           "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "scatter_", "send"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
  }
}

}  // namespace anyxpu
