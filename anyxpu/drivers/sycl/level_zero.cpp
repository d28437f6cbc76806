// Modules and kernels of Level Zero devices (Intel GPUs).
//
// Level Zero's headers do not come with the SYCL runtime, so the few functions needed are declared here after the
// specification, version 1 (structure types and layouts are part of its stable binary interface), and looked up in
// the loader that SYCL's own adapter has already loaded.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <sycl/ext/oneapi/backend/level_zero.hpp>

#include "gpu_compiler.h"
#include "modules.h"

namespace anyxpu::sycl_driver {
namespace {

using ze_result = uint32_t;
using ze_build_log = struct ze_build_log_opaque*;

constexpr ze_result kSuccess = 0, kInvalidGroupSize = 0x78000013;
constexpr uint32_t kModuleDescType = 0x1b;        // ZE_STRUCTURE_TYPE_MODULE_DESC
constexpr uint32_t kKernelDescType = 0x1d;        // ZE_STRUCTURE_TYPE_KERNEL_DESC
constexpr uint32_t kKernelPropertiesType = 0x1e;  // ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES
constexpr uint32_t kMaxGroupSizeType = 0x10013;   // ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES
constexpr uint32_t kFormatSpirv = 0, kFormatNative = 1;

struct ModuleDesc {
  uint32_t type = kModuleDescType;
  const void* next = nullptr;
  uint32_t format = 0;
  size_t input_size = 0;
  const uint8_t* input = nullptr;
  const char* build_flags = nullptr;
  const void* constants = nullptr;
};

struct KernelDesc {
  uint32_t type = kKernelDescType;
  const void* next = nullptr;
  uint32_t flags = 0;
  const char* name = nullptr;
};

struct KernelProperties {
  uint32_t type = kKernelPropertiesType;
  void* next = nullptr;
  uint32_t num_kernel_args = 0;
  uint32_t required_group_size[3] = {};
  uint32_t required_num_sub_groups = 0;
  uint32_t required_sub_group_size = 0;
  uint32_t max_sub_group_size = 0;
  uint32_t max_num_sub_groups = 0;
  uint32_t local_mem_size = 0;
  uint32_t private_mem_size = 0;
  uint32_t spill_mem_size = 0;
  uint8_t kernel_uuid[16] = {};
  uint8_t module_uuid[16] = {};
};

// What a work-group may hold of this kernel: less than the device's limit where each work-item takes many registers.
struct MaxGroupSize {
  uint32_t type = kMaxGroupSizeType;
  void* next = nullptr;
  uint32_t items = 0;
};

struct LevelZero {
  ze_result (*module_create)(ze_context_handle_t, ze_device_handle_t, const ModuleDesc*, ze_module_handle_t*,
                             ze_build_log*);
  ze_result (*module_destroy)(ze_module_handle_t);
  ze_result (*module_native)(ze_module_handle_t, size_t*, uint8_t*);
  ze_result (*module_names)(ze_module_handle_t, uint32_t*, const char**);
  ze_result (*log_string)(ze_build_log, size_t*, char*);
  ze_result (*log_destroy)(ze_build_log);
  ze_result (*kernel_create)(ze_module_handle_t, const KernelDesc*, ze_kernel_handle_t*);
  ze_result (*kernel_destroy)(ze_kernel_handle_t);
  ze_result (*kernel_properties)(ze_kernel_handle_t, KernelProperties*);
  ze_result (*kernel_set_group_size)(ze_kernel_handle_t, uint32_t, uint32_t, uint32_t);
  ze_result (*kernel_concurrent_groups)(ze_kernel_handle_t, uint32_t*);
  ze_result (*extension_function)(ze_driver_handle_t, const char*, void**);
};

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Failure(AX_UNSUPPORTED, std::string("libze_loader.so.1 has no ") + name);
}

LevelZero load() {
  void* library = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure(AX_UNSUPPORTED, std::string("cannot load libze_loader.so.1: ") + dlerror());
  LevelZero ze{};
  look_up(library, "zeModuleCreate", ze.module_create);
  look_up(library, "zeModuleDestroy", ze.module_destroy);
  look_up(library, "zeModuleGetNativeBinary", ze.module_native);
  look_up(library, "zeModuleGetKernelNames", ze.module_names);
  look_up(library, "zeModuleBuildLogGetString", ze.log_string);
  look_up(library, "zeModuleBuildLogDestroy", ze.log_destroy);
  look_up(library, "zeKernelCreate", ze.kernel_create);
  look_up(library, "zeKernelDestroy", ze.kernel_destroy);
  look_up(library, "zeKernelGetProperties", ze.kernel_properties);
  look_up(library, "zeKernelSetGroupSize", ze.kernel_set_group_size);
  look_up(library, "zeKernelSuggestMaxCooperativeGroupCount", ze.kernel_concurrent_groups);
  look_up(library, "zeDriverGetExtensionFunctionAddress", ze.extension_function);
  return ze;
}

const LevelZero& level_zero() {
  static const LevelZero ze = load();
  return ze;
}

// The bytes of each argument, where Intel's driver tells them: it takes a larger one in silence, and drops what is
// over.
std::vector<uint32_t> argument_bytes(const Device& device, ze_kernel_handle_t kernel, uint32_t count) {
  using Query = ze_result (*)(ze_kernel_handle_t, uint32_t, uint32_t*);
  void* found = nullptr;
  const auto driver = sycl::get_native<sycl::backend::ext_oneapi_level_zero>(device.device.get_platform());
  if (level_zero().extension_function(driver, "zexKernelGetArgumentSize", &found) != kSuccess || found == nullptr)
    return {};
  std::vector<uint32_t> bytes(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (reinterpret_cast<Query>(found)(kernel, i, &bytes[i]) != kSuccess) bytes[i] = 0;
  }
  return bytes;
}

std::string hex(ze_result result) {
  char text[32];
  std::snprintf(text, sizeof(text), "ze_result_t 0x%x", result);
  return text;
}

std::string take_log(ze_build_log log) {
  if (log == nullptr) return {};
  const LevelZero& ze = level_zero();
  size_t size = 0;
  std::string text;
  if (ze.log_string(log, &size, nullptr) == kSuccess && size > 0) {
    text.resize(size);
    ze.log_string(log, &size, text.data());
  }
  ze.log_destroy(log);
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
  return text;
}

class LevelZeroModule final : public ax_module {
 public:
  LevelZeroModule(Device& device, const Code& code) : ax_module(device) {
    ModuleDesc desc;
    desc.format = code.format == AX_MODULE_SPIRV ? kFormatSpirv : kFormatNative;
    desc.input_size = code.bytes;
    desc.input = static_cast<const uint8_t*>(code.data);
    desc.build_flags = code.options;
    ze_build_log log = nullptr;
    ze_module_handle_t handle = nullptr;
    const ze_result result = level_zero().module_create(
        sycl::get_native<sycl::backend::ext_oneapi_level_zero>(device.context),
        sycl::get_native<sycl::backend::ext_oneapi_level_zero>(device.device), &desc, &handle, &log);
    const std::string text = take_log(log);
    if (result != kSuccess) {
      throw Failure(AX_BUILD_FAILED, text.empty() ? "the GPU's compiler answers " + hex(result) : text);
    }
    // Kernels hold the bundle, and the bundle owns the module: it goes when the last kernel does.
    bundle_.emplace(make_bundle(handle));
    handle_ = handle;
  }

  std::vector<uint8_t> native() const override {
    size_t size = 0;
    check(level_zero().module_native(handle_, &size, nullptr), "read the binary's size");
    std::vector<uint8_t> binary(size);
    check(level_zero().module_native(handle_, &size, binary.data()), "read the binary");
    return binary;
  }

  std::unique_ptr<ax_kernel> kernel(const std::string& name) const override {
    const LevelZero& ze = level_zero();
    KernelDesc desc;
    desc.name = name.c_str();
    ze_kernel_handle_t handle = nullptr;
    const ze_result result = ze.kernel_create(handle_, &desc, &handle);
    if (result != kSuccess) {
      if (result == kInvalidGroupSize)
        throw Failure(AX_INVALID, "the kernel " + name + " requires a larger work-group than the device's, which has " +
                                      std::to_string(most_work_items()) + " work-items");
      throw Failure(AX_INVALID, "the module has no kernel " + name + " (" + hex(result) + "); it has: " + names());
    }
    MaxGroupSize limit;
    KernelProperties properties;
    properties.next = &limit;
    const ze_result answer = ze.kernel_properties(handle, &properties);
    if (answer != kSuccess) {
      ze.kernel_destroy(handle);
      check(answer, "query the kernel's properties");
    }
    auto made = wrap(handle, name);
    made->arg_count = properties.num_kernel_args;
    made->arg_bytes = argument_bytes(device, handle, made->arg_count);
    made->owner = &device;
    std::copy_n(properties.required_group_size, 3, made->required_local);
    const uint32_t most = most_work_items();
    made->info = {
        limit.items != 0 ? std::min(limit.items, most) : most,
        properties.required_sub_group_size ? properties.required_sub_group_size : properties.max_sub_group_size,
        properties.local_mem_size,
        properties.private_mem_size,
        properties.spill_mem_size,
        0};
    const uint32_t* group = made->required_local;
    if (group[0] != 0 && ze.kernel_set_group_size(handle, group[0], group[1], group[2]) == kSuccess)
      ze.kernel_concurrent_groups(handle, &made->info.concurrent_groups);  // stays 0 where it does not answer
    return made;
  }

 private:
  using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;

  static void check(ze_result result, const char* what) {
    if (result != kSuccess) throw Failure(AX_INVALID, std::string("cannot ") + what + ": " + hex(result));
  }

  Bundle make_bundle(ze_module_handle_t handle) {
    try {
      return sycl::make_kernel_bundle<sycl::backend::ext_oneapi_level_zero, sycl::bundle_state::executable>(
          {handle, sycl::ext::oneapi::level_zero::ownership::transfer}, device.context);
    } catch (...) {
      level_zero().module_destroy(handle);
      throw;
    }
  }

  std::unique_ptr<ax_kernel> wrap(ze_kernel_handle_t handle, const std::string& name) const {
    try {
      return std::make_unique<ax_kernel>(
          ax_kernel{sycl::make_kernel<sycl::backend::ext_oneapi_level_zero>(
                        {*bundle_, handle, sycl::ext::oneapi::level_zero::ownership::transfer}, device.context),
                    name});
    } catch (...) {
      level_zero().kernel_destroy(handle);
      throw;
    }
  }

  std::string names() const {
    uint32_t count = 0;
    if (level_zero().module_names(handle_, &count, nullptr) != kSuccess) return {};
    std::vector<const char*> list(count);
    level_zero().module_names(handle_, &count, list.data());
    std::string text;
    for (const char* name : list) text += (text.empty() ? "" : ";") + std::string(name);
    return text;
  }

  uint32_t most_work_items() const {
    return static_cast<uint32_t>(device.device.get_info<sycl::info::device::max_work_group_size>());
  }

  std::optional<Bundle> bundle_;
  ze_module_handle_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<ax_module> make_level_zero_module(Device& device, const Code& code) {
  if (code.format == AX_MODULE_OPENCL_C) {
    const std::vector<uint8_t> native = compile_opencl_c(device, code);
    return std::make_unique<LevelZeroModule>(device, Code{AX_MODULE_NATIVE, native.data(), native.size(), ""});
  }
  return std::make_unique<LevelZeroModule>(device, code);
}

}  // namespace anyxpu::sycl_driver
