// What ATen asks of an accelerator.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>

#include "shim/allocator.h"
#include "shim/pinned.h"
#include "shim/runtime.h"

namespace anyxpu {

struct XPUHooks final : public at::XPUHooksInterface {
  XPUHooks() = default;
  explicit XPUHooks(at::XPUHooksArgs) {}  // torch before 2.13 makes its hooks with this

  void init() const override { driver(); }
  bool hasXPU() const override { return device_count() > 0; }
  // ATen asks this to name the one accelerator of a build and refuses to find two. Beside CUDA that one is CUDA
  // unless xpu was asked to become it (accelerator.h).
  bool isBuilt() const override { return !at::detail::getCUDAHooks().isBuilt(); }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return driver_started(); }

  c10::DeviceIndex getNumGPUs() const override { return device_count(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex current_device() const override { return anyxpu::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return anyxpu::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto previous = anyxpu::current_device();
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  int32_t getGlobalIdxFromDevice(const c10::Device& device) const override {
    TORCH_CHECK(device.is_xpu(), "anyxpu: expected an xpu device, got ", device);
    return device.index();
  }
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize_device(device); }

  bool isPinnedPtr(const void* data) const override { return is_pinned_ptr(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    auto device = device_of(data);
    TORCH_CHECK(device, "anyxpu: ", data, " is not memory that the xpu allocator handed out");
    return {c10::DeviceType::XPU, *device};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  std::string showConfig() const override { return driver_started() ? driver().description() : "not started"; }
};

}  // namespace anyxpu

namespace at {
using anyxpu::XPUHooks;
REGISTER_XPU_HOOKS(XPUHooks);
}  // namespace at
