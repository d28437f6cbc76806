// oneDNN's primitives with all but the addresses of their operands, which anyxpu/onednn makes and this runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "drivers/driver.h"

namespace anyxpu {

// The calls that running a primitive takes, by address: oneDNN's own, and the driver's that guard them
// (drivers/sycl/interop.cpp, host_tasks.cpp).
struct PrimitiveCalls {
  uintptr_t guarded;         // anyxpu_sycl_guarded_6
  uintptr_t memory_create;   // dnnl_sycl_interop_memory_create
  uintptr_t memory_destroy;  // dnnl_memory_destroy
  uintptr_t submit;          // anyxpu_sycl_submit_6
  uintptr_t take;            // anyxpu_sycl_take_6; 0 where oneDNN's host tasks cannot be had
  uintptr_t execute;         // dnnl_sycl_interop_primitive_execute
};

class Primitive : public std::enable_shared_from_this<Primitive> {
 public:
  struct Operand {
    int arg;               // dnnl's number of the argument
    uintptr_t descriptor;  // its layout
  };

  Primitive(const PrimitiveCalls& calls, uintptr_t handle, uintptr_t engine, std::vector<Operand> operands,
            uint64_t operations, std::string what)
      : operations(operations),
        calls_(calls),
        handle_(handle),
        engine_(engine),
        operands_(std::move(operands)),
        what_(std::move(what)) {}

  // Enqueues it. `stream` is oneDNN's over `queue`, or (`taken`) one beside it whose host tasks the driver takes; an
  // address for each operand. Throws anyxpu.onednn.capi.OneDnnError. Called with the GIL or without, which a submission
  // to SYCL must not hold.
  void run(uintptr_t stream, ax_queue* queue, bool taken, at::ArrayRef<uintptr_t> addresses);

  const uint64_t operations;  // about as many

 private:
  [[noreturn]] void fail(const char* call, int status) const;

  const PrimitiveCalls calls_;
  const uintptr_t handle_, engine_;
  const std::vector<Operand> operands_;
  const std::string what_;
};

}  // namespace anyxpu
