// What the operator files of the shim share: how an operator was served, device kernels, moving bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "shim/runtime.h"

namespace c10 {
class OperatorHandle;
}

namespace anyxpu {

// --- how operators are served -------------------------------------------------------------------------------
// The order in which a way is looked for; DESIGN's resolution order.
enum class Way : uint8_t { structural, library, compiled, host };
inline constexpr std::array<const char*, 4> kWayNames = {"structural", "library", "compiled", "host"};

class OpCounter;
class Recording;
// The calling thread's (recording.h); null mostly.
extern constinit thread_local Recording* the_recording;
void note_counted(OpCounter& counter, Way way);

class OpCounter {
 public:
  void add(Way way) {
    if (C10_UNLIKELY(the_recording != nullptr)) note_counted(*this, way);
    again(way);
  }
  // Of a call that was recorded.
  void again(Way way) noexcept { counts_[static_cast<size_t>(way)].fetch_add(1, std::memory_order_relaxed); }
  int64_t get(Way way) const noexcept { return counts_[static_cast<size_t>(way)].load(std::memory_order_relaxed); }
  void reset() noexcept {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<int64_t>, 4> counts_{};
};

// The counter of the operator `name` ("aten::add.out"), made at first need; the reference never dies.
OpCounter& op_counter(std::string_view name);
void for_each_counter(const std::function<void(const std::string&, OpCounter&)>& visit);

// --- device kernels -----------------------------------------------------------------------------------------
// What a copy does to a value on its way, beside converting it.
enum class CopyOp : uint8_t { none, negate, conjugate, negate_conjugate };
// How a kernel walks memory: one dense run; any strides with 32-bit byte offsets; any strides at all. On a CPU device
// also, with 32-bit byte offsets, run by run along the first dimension, and tile by tile where source and destination
// are dense along different dimensions.
enum class Walk : uint8_t { dense, strided32, strided64, rows32, tiled32 };

// Makes the kernel (family, source type, destination type, walk) for a device, or None where the device cannot
// express it. Called with the GIL held, once for each kernel and device.
void set_kernel_provider(void* python_callable);  // a borrowed PyObject*; kept for good
// Types are names such as "f32", or "b32" for 32 bits moved as they are. nullptr: it cannot be expressed.
ax_kernel* device_kernel(c10::DeviceIndex device, const char* family, const std::string& source,
                         const std::string& destination, Walk walk);
// Launches `kernel` over `count` elements, kElementsPerItem for each work-item.
void launch_elements(c10::DeviceIndex device, ax_kernel* kernel, int64_t count, ax_arg* args, uint32_t arg_count,
                     const char* what);

// --- moving bytes -------------------------------------------------------------------------------------------
at::Tensor& copy_tensor(at::Tensor& self, const at::Tensor& src, bool non_blocking);
at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value);
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value);
at::Tensor& fill_zero(at::Tensor& self);

// Grows or shrinks a storage on its device's current stream; the common part of the bytes is kept.
void resize_storage(c10::StorageImpl* storage, size_t bytes);
// Sets sizes and strides (contiguous where none are given), growing the storage to hold them.
void resize_tensor(c10::TensorImpl* self, at::IntArrayRef size, at::OptionalIntArrayRef stride);

inline c10::Device xpu_device(c10::DeviceIndex index) { return c10::Device(c10::DeviceType::XPU, index); }

// --- which way is taken --------------------------------------------------------------------------------------
// ANYXPU_EAGER: kernels are waited for; or the host serves while they are built; or the host serves all that kernels of
// signature classes would; or a call of the host is an error.
enum class Eager : uint8_t { compile, automatic, host, strict };
inline constexpr std::array<const char*, 4> kEagerNames = {"compile", "auto", "host", "strict"};
Eager eager() noexcept;
void set_eager(Eager mode) noexcept;

// --- host path ----------------------------------------------------------------------------------------------
// Serves an operator by ATen's CPU kernel; the backend fallback of key XPU. The arguments are taken off the stack and
// the results put on it.
void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Serves by the host (`by_host`) while the operator's kernel is built; where the host has none of such a type, waits
// for the kernel.
void host_or_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                    void (*by_host)(const c10::OperatorHandle&, torch::jit::Stack*));
// Serves operator `name` by its function for complex operands (ops/complex_numbers.py) where there are such, else by
// the host.
void complex_or_host(const std::string& name, const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Raises torch's error where an operator that does not allow it would write (`outs`) what it reads.
void refuse_overlap(const std::string& name, at::ArrayRef<at::Tensor> outs, at::ArrayRef<at::Tensor> read);
// Operators that the host serves although torch makes them of others, without their namespace.
const std::vector<std::string>& stubbed_composites();
// Runs host operators on copies even where the host can read device memory, as on a discrete GPU.
void set_host_copies(bool always) noexcept;
// Whether they run on the device's own memory.
bool host_reaches(c10::DeviceIndex device);
// Names of the operators that structural.cpp serves.
const std::map<std::string, Way>& structural_operators();

}  // namespace anyxpu
