// Philox generators: a seed and an offset. A kernel that draws numbers reserves a range of offsets here.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include "shim/runtime.h"

namespace anyxpu {
namespace {

// State as CUDA lays it out: seed, then offset, both little-endian 64-bit.
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

struct XPUGeneratorImpl final : public c10::GeneratorImpl {
  explicit XPUGeneratorImpl(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(c10::DeviceType::XPU, device), c10::DispatchKeySet(c10::DispatchKey::XPU)) {}

  static c10::DeviceType device_type() { return c10::DeviceType::XPU; }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4, got ", offset);
    offset_ = offset;
  }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    uint64_t random = c10::detail::getNonDeterministicRandom(true);
    set_current_seed(random);
    return random;
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    auto bytes = static_cast<size_t>(state.numel());
    TORCH_CHECK(bytes == kStateBytes || bytes == sizeof(uint64_t), "RNG state is wrong size: an xpu generator's is ",
                kStateBytes, " bytes, got ", bytes);
    const void* const data = state.data();
    TORCH_CHECK(data != nullptr,
                "an xpu generator's state is set from numbers, and this tensor has none (a fake one?)");
    std::array<uint64_t, 2> parts{0, 0};
    std::memcpy(parts.data(), data, bytes);
    set_current_seed(parts[0]);
    set_offset(parts[1]);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    // Not by way of the dispatcher: under a mode of fake tensors it would have no memory, and the state is real.
    at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
    std::array<uint64_t, 2> parts{seed_, offset_};
    std::memcpy(state.mutable_data_ptr(), parts.data(), kStateBytes);
    return state.getIntrusivePtr();
  }
  uint64_t reserve(uint64_t increment) {
    uint64_t first = offset_;
    offset_ += (increment + 3) / 4 * 4;  // philox makes four numbers a step
    return first;
  }

 private:
  XPUGeneratorImpl* clone_impl() const override {
    auto* copy = new XPUGeneratorImpl(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

constexpr size_t kMaxDevices = 128;
std::array<std::once_flag, kMaxDevices> default_made;
std::array<at::Generator, kMaxDevices>& defaults() {
  static auto* all = new std::array<at::Generator, kMaxDevices>();
  return *all;
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  device = resolve_device(device);
  check_device(device);
  auto& slot = defaults()[static_cast<size_t>(device)];
  std::call_once(default_made[static_cast<size_t>(device)], [&] {
    slot = at::make_generator<XPUGeneratorImpl>(device);
    slot.seed();
  });
  return slot;
}

at::Generator new_generator(c10::DeviceIndex device) {
  device = resolve_device(device);
  check_device(device);
  auto generator = at::make_generator<XPUGeneratorImpl>(device);
  generator.set_current_seed(c10::default_rng_seed_val);
  return generator;
}

std::pair<uint64_t, uint64_t> philox_state(const std::optional<at::Generator>& generator, uint64_t increment,
                                           c10::DeviceIndex device) {
  at::Generator chosen = generator && generator->defined() ? *generator : default_generator(device);
  auto* impl = at::check_generator<XPUGeneratorImpl>(chosen);
  std::lock_guard<std::mutex> lock(impl->mutex_);
  uint64_t seed = impl->current_seed();
  return {seed, impl->reserve(increment)};
}

}  // namespace anyxpu
