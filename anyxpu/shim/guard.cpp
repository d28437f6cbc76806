// c10's view of devices, streams and events.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "shim/allocator.h"
#include "shim/assertions.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

ax_event* as_event(void* event) { return static_cast<ax_event*>(event); }

struct XPUGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::XPU;

  c10::DeviceType type() const override { return static_type; }

  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {static_type, current_device()}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == static_type, "anyxpu: expected an xpu device, got ", device);
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (!device.has_index()) return;
    try {
      set_current_device(device.index());
    } catch (const std::exception& error) {
      TORCH_WARN(error.what());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    const auto& about = properties(device.index());
    c10::DeviceCapability capability;
    capability.capability_data.supported_scalar_types.has_Double = about.has_fp64;
    capability.capability_data.supported_scalar_types.has_ComplexDouble = about.has_fp64;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return stream_from_pool(device.index(), high ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_current_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return queue(stream); }

  bool queryStream(const c10::Stream& stream) const override {
    return done(driver().queue_query(queue(stream)), "query a stream");
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_for(queue(stream), stream.device_index(), "synchronize a stream");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize_device(device); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) {
      ax_event* made = nullptr;
      int timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      check(driver().event_create(stream.device_index(), timing, &made), "create an event");
      *event = made;
    }
    check(driver().event_record(as_event(*event), queue(stream)), "record an event");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    check(driver().event_wait(as_event(event), queue(stream)), "make a stream wait for an event");
    note_dependence(queue(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || done(driver().event_query(as_event(event)), "query an event");
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    wait_for_event(as_event(event), "wait for an event");
    raise_failed_assertion(current_device());
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    double milliseconds = 0;
    ax_status status = driver().event_elapsed(as_event(start), as_event(end), &milliseconds);
    TORCH_CHECK(status != AX_NOT_READY, "Both events must be completed before calculating elapsed time.");
    check(status, "compute the time between two events");
    return milliseconds;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event && !in_bad_fork()) driver().event_destroy(as_event(event));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, stream);
  }

 private:
  static bool done(ax_status status, const char* what) {
    if (status == AX_NOT_READY) return false;
    check(status, what);
    return true;
  }
};

C10_REGISTER_GUARD_IMPL(XPU, XPUGuardImpl);

}  // namespace
}  // namespace anyxpu
