// The process group backend "xccl": what serves xpu in torch.distributed by default.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace anyxpu {

// Where the arguments' process group has the backend xccl for xpu: puts the group that does its work in its place, and
// says so. A reduction that gloo lacks (AVG) becomes one that it has, of tensors that are scaled before.
bool for_host_group(const std::string& name, const c10::FunctionSchema& schema, torch::jit::Stack& arguments);

// Enqueues a collective between GPUs where the arguments' process group has the backend xccl and its communicator takes
// it; `results` are then what the operator returns.
bool enqueue_between_gpus(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments,
                          torch::jit::Stack& results);

// A collective's work, for whoever coalesces those of the group just now.
void coalesce(const c10::IValue& group, const c10::intrusive_ptr<c10d::Work>& work);

// c10d::alltoall_ by c10d::alltoall_base_, for gloo has it with one tensor alone. Returns when it is done.
void all_to_all(torch::jit::Stack* stack);

}  // namespace anyxpu
