// How a module and its kernels are made; one implementation a backend.
#pragma once

#include "common.h"
#include "entry.h"

struct ax_kernel {
  sycl::kernel kernel;
  std::string name;
  const char* label = "";  // the name, for what may outlive the kernel (note_launch)
  uint32_t arg_count = 0;
  uint32_t required_local[3] = {};  // by its source's attribute; 0 where there is none
  ax_kernel_info info{};
  std::vector<uint32_t> arg_bytes{};                   // 0 where the size is not known; empty where none is
  const anyxpu::sycl_driver::Device* owner = nullptr;  // where the backend itself does not refuse another's queue
  anyxpu::sycl_driver::InPlace* in_place = nullptr;    // the device's, where `direct` is there
  anyxpu::sycl_driver::DirectKernel direct{};
  std::optional<anyxpu::sycl_driver::Entry> entry{};  // beside `direct`, the sooner of the two
};

struct ax_module {
  explicit ax_module(anyxpu::sycl_driver::Device& device) : device(device) {}
  virtual ~ax_module() = default;
  virtual std::vector<uint8_t> native() const = 0;
  virtual std::unique_ptr<ax_kernel> kernel(const std::string& name) const = 0;
  anyxpu::sycl_driver::Device& device;
};

namespace anyxpu::sycl_driver {

struct Code {
  ax_module_format format;
  const void* data;
  uint64_t bytes;
  const char* options;  // never null
};

// Both throw Failure(AX_BUILD_FAILED, <the build log>).
std::unique_ptr<ax_module> make_opencl_module(Device& device, const Code& code);
std::unique_ptr<ax_module> make_level_zero_module(Device& device, const Code& code);

}  // namespace anyxpu::sycl_driver
