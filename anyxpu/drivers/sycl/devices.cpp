// Finding devices, telling their properties, and keeping count of their memory.
#include <CL/cl.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "gpu_compiler.h"

namespace anyxpu::sycl_driver {
namespace {

namespace intel = sycl::ext::intel::info::device;
namespace experimental = sycl::ext::oneapi::experimental;
using sycl::info::device::max_compute_units;

// Kept back from what the OS says it could give, so that the last large allocation does not meet the OOM killer.
constexpr uint64_t kHostReserve = 256ull << 20;
// Below this an allocation does not ask the OS how much is left.
constexpr uint64_t kSmallAllocation = 1ull << 20;
constexpr size_t kAlignment = 256;
// On a CPU device, addresses before and behind every allocation that belong to nobody. A GPU's memory is apart from the
// process's, so that a kernel which leaves its tensors by a little reads or writes nothing that matters; here it would
// die, or write over the process's heap. Only pages that are touched become memory.
constexpr uint64_t kMargin = 64ull << 20;

struct Allocation {
  void* base;  // what SYCL is to free
  uint64_t bytes;
};

struct State {
  std::mutex open_mutex;
  bool opened = false;
  ax_status open_status = AX_OK;
  std::string open_error;
  std::vector<std::unique_ptr<Device>> devices;
  std::mutex handed_out_mutex;
  std::unordered_map<void*, Allocation> handed_out;  // device and shared memory
};

State& state() {
  static State* leaked = new State;
  return *leaked;
}

// The OpenCL loader is told where the CPU driver lies: the .icd file of the package names a path of the machine it was
// built on. libsycl and the CPU driver are installed side by side.
std::string runtime_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&sycl::platform::get_platforms), &info) || !info.dli_fname) return {};
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

void prepare_environment() {
  const std::string folder = runtime_folder();
  const std::string driver = folder + "/libintelocl.so";
  if (std::filesystem::exists(driver)) setenv("OCL_ICD_FILENAMES", driver.c_str(), 0);
  // By default the CPU driver refuses a single allocation of more than half of the memory.
  const std::string limit = std::to_string(physical_memory() >> 20) + "MB";
  setenv("CL_CONFIG_CPU_FORCE_MAX_MEM_ALLOC_SIZE", limit.c_str(), 0);
  // Kernels for the CPU keep arrays in local memory (see triton/storage.py); Triton's largest tile has 2^20 elements.
  setenv("CL_CONFIG_CPU_FORCE_LOCAL_MEM_SIZE", "64MB", 0);
  // By default there is one worker fewer than cores, for the thread that waits: until it waits, a core is idle, and
  // what it does not get to in time the others finish. And cores are given what parts of a kernel they had the last
  // time, as far as they are free: what one kernel left in a core's cache, the next one finds there.
  setenv("CL_CONFIG_CPU_TBB_NUM_WORKERS", std::to_string(std::thread::hardware_concurrency()).c_str(), 0);
  setenv("DPCPP_CPU_SCHEDULE", "affinity", 0);
  // Host tasks of different streams run beside each other; one thread is the default.
  setenv("SYCL_QUEUE_THREAD_POOL_SIZE", "4", 0);
  // Free memory of a GPU is answered by Sysman only.
  setenv("ZES_ENABLE_SYSMAN", "1", 0);
}

// Linux lets a process use the CPU's tile registers (AMX) once it has asked: kernels do (see triton/tiles.py). Where
// there are none it refuses, and no kernel for them is made (processor.py).
void ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  syscall(SYS_arch_prctl, kRequestPermission, kTileData);
#endif
}

bool is_level_zero_gpu(const sycl::device& device) {
  return device.get_backend() == sycl::backend::ext_oneapi_level_zero && device.is_gpu();
}

bool is_opencl_cpu(const sycl::device& device) {
  return device.get_backend() == sycl::backend::opencl && device.is_cpu();
}

std::vector<sycl::device> find(bool (*wanted)(const sycl::device&)) {
  std::vector<sycl::device> found;
  for (const sycl::platform& platform : sycl::platform::get_platforms()) {
    for (const sycl::device& device : platform.get_devices()) {
      if (wanted(device)) found.push_back(device);
    }
  }
  return found;
}

std::unique_ptr<Device> make_device(const sycl::device& device, const sycl::context& context, int ordinal, int split) {
  const uint64_t memory = device.is_cpu() ? physical_memory() : device.get_info<sycl::info::device::global_mem_size>();
  return std::make_unique<Device>(device, context, ordinal, split, memory / static_cast<uint64_t>(split));
}

// GPUs share one context, as peer copies between them need: their platform's own, so that oneCCL and other libraries
// of SYCL, which take that one, can use our queues and memory.
sycl::context context_of(const std::vector<sycl::device>& devices) {
  const sycl::platform platform = devices[0].get_platform();
  const bool one = std::all_of(devices.begin(), devices.end(),
                               [&](const sycl::device& device) { return device.get_platform() == platform; });
  return devices[0].is_gpu() && one ? platform.khr_get_default_context() : sycl::context(devices);
}

void find_devices(int wanted) {
  prepare_environment();
  ask_for_tiles();
  std::vector<sycl::device> found = find(is_level_zero_gpu);
  if (const char* simulated = std::getenv("ANYXPU_SIMULATE"); found.empty() && simulated != nullptr && *simulated) {
    // Not the CPU in its place: the program asked for a GPU, and would not see that it runs on none.
    throw Failure(AX_NO_DEVICE, std::string("Intel's driver was to simulate a ") + simulated +
                                    " and shows no GPU: another version of it may want other switches. "
                                    "Get the one that anyxpu knows: anyxpu get-driver");
  }
  if (found.empty()) found = find(is_opencl_cpu);
  if (found.empty()) {
    throw Failure(AX_NO_DEVICE,
                  "SYCL finds no Level Zero GPU and no OpenCL CPU. Install the CPU driver beside libsycl (in " +
                      runtime_folder() + "): pip install intel-opencl-rt");
  }
  auto& devices = state().devices;
  if (wanted > 0) {
    for (int i = 0; i < wanted; ++i) devices.push_back(make_device(found[0], sycl::context(found[0]), i, wanted));
    return;
  }
  if (!found[0].is_gpu()) found.resize(1);
  const sycl::context context = context_of(found);
  for (size_t i = 0; i < found.size(); ++i) devices.push_back(make_device(found[i], context, static_cast<int>(i), 1));
}

// --- properties ---------------------------------------------------------------------------------------------

template <size_t N>
void put(char (&field)[N], const std::string& text) {
  std::snprintf(field, N, "%s", text.c_str());
}

// The answer to a query that not every device knows.
template <typename Query>
auto ask(const sycl::device& device, sycl::aspect aspect,
         decltype(std::declval<sycl::device>().get_info<Query>()) otherwise) {
  return device.has(aspect) ? device.get_info<Query>() : otherwise;
}

// What a GPU can do that Level Zero does not tell: on a g++ build SYCL knows no OpenCL extension of such a device.
enum Feature : uint32_t { kBFloat16 = 1, kMatrix = 2, kMatrixTf32 = 4, kBlockIo = 8 };
constexpr uint32_t kXeHpg = kBFloat16 | kMatrix, kXe2 = kXeHpg | kMatrixTf32 | kBlockIo;

struct Target {
  experimental::architecture architecture;
  const char* name;
  uint32_t features;
};

// The names that the offline compiler gives to the architectures it generates for, and what those can do; a test asks
// Intel's OpenCL driver the same.
constexpr std::array<Target, 15> kTargets{{
    {experimental::architecture::intel_gpu_acm_g10, "dg2", kXeHpg},
    {experimental::architecture::intel_gpu_acm_g11, "dg2", kXeHpg},
    {experimental::architecture::intel_gpu_acm_g12, "dg2", kXeHpg},
    {experimental::architecture::intel_gpu_pvc, "pvc", kXe2},
    {experimental::architecture::intel_gpu_pvc_vg, "pvc", kXe2},
    {experimental::architecture::intel_gpu_mtl_u, "mtl", kBFloat16},
    {experimental::architecture::intel_gpu_mtl_h, "mtl", kBFloat16},
    {experimental::architecture::intel_gpu_arl_h, "arl-h", kXeHpg},
    {experimental::architecture::intel_gpu_bmg_g21, "bmg", kXe2},
    {experimental::architecture::intel_gpu_bmg_g31, "bmg", kXe2},
    {experimental::architecture::intel_gpu_lnl_m, "lnl", kXe2},
    {experimental::architecture::intel_gpu_ptl_h, "ptl", kXe2},
    {experimental::architecture::intel_gpu_ptl_u, "ptl", kXe2},
    {experimental::architecture::intel_gpu_tgllp, "tgllp", 0},
    {experimental::architecture::intel_gpu_cri, "cri", kXe2},
}};

struct Extension {
  Feature feature;
  const char* name;  // an OpenCL extension
  uint8_t ax_device_properties::* field;
};

constexpr std::array<Extension, 4> kExtensions{{
    {kBFloat16, "cl_intel_bfloat16_conversions", &ax_device_properties::has_bfloat16_conversions},
    {kMatrix, "cl_intel_subgroup_matrix_multiply_accumulate",
     &ax_device_properties::has_subgroup_matrix_multiply_accumulate},
    {kMatrixTf32, "cl_intel_subgroup_matrix_multiply_accumulate_tf32",
     &ax_device_properties::has_subgroup_matrix_multiply_accumulate_tensor_float32},
    {kBlockIo, "cl_intel_subgroup_2d_block_io", &ax_device_properties::has_subgroup_2d_block_io},
}};

const Target* target_of(const sycl::device& device) {
  const auto architecture = device.get_info<experimental::info::device::architecture>();
  const auto found = std::find_if(kTargets.begin(), kTargets.end(),
                                  [&](const Target& target) { return target.architecture == architecture; });
  return found == kTargets.end() ? nullptr : &*found;
}

// "OpenCL 3.1 (Build 0)" is version 3.1: what reads a version splits it at its points.
std::string digits(const std::string& version) {
  const size_t first = version.find_first_of("0123456789");
  return first == std::string::npos ? version
                                    : version.substr(first, version.find_first_not_of("0123456789.", first) - first);
}

void fill_identity(const Device& d, ax_device_properties& p) {
  const sycl::device& device = d.device;
  const sycl::platform platform = device.get_platform();
  put(p.name, device.get_info<sycl::info::device::name>());
  put(p.platform_name, platform.get_info<sycl::info::platform::name>());
  put(p.vendor, device.get_info<sycl::info::device::vendor>());
  put(p.driver_version, device.get_info<sycl::info::device::driver_version>());
  put(p.version, digits(device.get_info<sycl::info::device::version>()));
  p.type = device.is_cpu() ? AX_DEVICE_CPU : device.is_gpu() ? AX_DEVICE_GPU : AX_DEVICE_OTHER;
  p.vendor_id = device.get_info<sycl::info::device::vendor_id>();
  p.device_id = ask<intel::device_id>(device, sycl::aspect::ext_intel_device_id, 0);
  if (device.has(sycl::aspect::ext_intel_device_info_uuid)) {
    const auto uuid = device.get_info<intel::uuid>();
    std::copy(uuid.begin(), uuid.end(), p.uuid);
  }
  // Two halves of one CPU are two devices, and so need two names.
  p.uuid[15] = static_cast<uint8_t>(p.uuid[15] ^ (d.split > 1 ? d.ordinal : 0));
  p.architecture = static_cast<uint64_t>(device.get_info<experimental::info::device::architecture>());
  if (device.is_cpu()) put(p.target, "cpu");
  if (const Target* target = target_of(device)) put(p.target, target->name);
}

void fill_sizes(const Device& d, ax_device_properties& p) {
  const sycl::device& device = d.device;
  p.total_memory = d.total_memory;
  p.local_mem_size = device.get_info<sycl::info::device::local_mem_size>();
  p.last_level_cache_size = device.get_info<sycl::info::device::global_mem_cache_size>();
  p.clock_rate = device.get_info<sycl::info::device::max_clock_frequency>();
  if (device.is_cpu()) {
    p.first_level_cache_size = cache_of_level(1);
    if (const uint64_t cache = cache_of_level(0)) p.last_level_cache_size = cache;
    if (p.clock_rate == 0) p.clock_rate = cpu_clock_mhz();
  }
  p.memory_clock_rate = ask<intel::memory_clock_rate>(device, sycl::aspect::ext_intel_memory_clock_rate, 0);
  p.memory_bus_width = ask<intel::memory_bus_width>(device, sycl::aspect::ext_intel_memory_bus_width, 0);
  p.max_work_group_size = static_cast<uint32_t>(device.get_info<sycl::info::device::max_work_group_size>());
  p.max_num_sub_groups = device.get_info<sycl::info::device::max_num_sub_groups>();
  const auto sizes = device.get_info<sycl::info::device::sub_group_sizes>();
  for (size_t i = 0; i < std::min<size_t>(sizes.size(), AX_MAX_SUB_GROUP_SIZES); ++i)
    p.sub_group_sizes[i] = static_cast<uint32_t>(sizes[i]);
}

void fill_engines(const Device& d, ax_device_properties& p) {
  const sycl::device& device = d.device;
  const uint32_t units = device.get_info<max_compute_units>();
  p.max_compute_units = units;
  if (device.is_cpu()) {
    p.gpu_eu_count = p.gpu_subslice_count = units;
    p.gpu_eu_count_per_subslice = p.gpu_hw_threads_per_eu = 1;
    p.gpu_eu_simd_width = device.get_info<sycl::info::device::native_vector_width_float>();
    return;
  }
  p.gpu_eu_count = ask<intel::gpu_eu_count>(device, sycl::aspect::ext_intel_gpu_eu_count, units);
  p.gpu_eu_simd_width = ask<intel::gpu_eu_simd_width>(device, sycl::aspect::ext_intel_gpu_eu_simd_width, 0);
  p.gpu_eu_count_per_subslice =
      ask<intel::gpu_eu_count_per_subslice>(device, sycl::aspect::ext_intel_gpu_eu_count_per_subslice, 0);
  p.gpu_hw_threads_per_eu = ask<intel::gpu_hw_threads_per_eu>(device, sycl::aspect::ext_intel_gpu_hw_threads_per_eu, 0);
  p.gpu_subslice_count =
      ask<intel::gpu_slices>(device, sycl::aspect::ext_intel_gpu_slices, 0) *
      ask<intel::gpu_subslices_per_slice>(device, sycl::aspect::ext_intel_gpu_subslices_per_slice, 0);
}

// For tests: a CPU device whose memory nobody but kernels and copies may touch, as a discrete GPU's is.
bool hides_memory() {
  const char* access = std::getenv("ANYXPU_HOST_ACCESS");
  return access != nullptr && std::string_view(access) == "0";
}

void fill_features(const Device& d, ax_device_properties& p) {
  const sycl::device& device = d.device;
  p.compiles_opencl_c = device.is_cpu() || compiles_opencl_c(d);
  const Target* target = target_of(device);
  for (const Extension& extension : kExtensions) {
    if (device.is_cpu()) continue;
    // A GPU newer than the table is asked by way of its OpenCL driver.
    p.*extension.field =
        target != nullptr ? (target->features & extension.feature) != 0 : supports_extension(d, extension.name);
  }
  p.has_fp16 = device.has(sycl::aspect::fp16);
  p.has_fp64 = device.has(sycl::aspect::fp64);
  p.has_atomic64 = device.has(sycl::aspect::atomic64);
  p.host_accessible = device.is_cpu() && !hides_memory();
  p.is_integrated = device.is_cpu() || device.has(sycl::aspect::ext_oneapi_is_integrated_gpu);
}

// --- memory -------------------------------------------------------------------------------------------------

// Bytes that could be had from the host now, for whatever device or purpose.
uint64_t host_left() {
  uint64_t handed_out = 0;
  for (const auto& device : devices()) {
    if (device->is_cpu()) handed_out += device->used.load(std::memory_order_relaxed);
  }
  const uint64_t available = available_memory(), promised = untouched_memory(handed_out) + kHostReserve;
  return available > promised ? available - promised : 0;
}

uint64_t free_memory(const Device& device) {
  const uint64_t used = device.used.load(std::memory_order_relaxed);
  const uint64_t left = device.total_memory > used ? device.total_memory - used : 0;
  if (device.is_cpu()) return std::min(left, host_left());
  if (device.device.has(sycl::aspect::ext_intel_free_memory))
    return std::min(left, device.device.get_info<intel::free_memory>());
  return left;
}

[[noreturn]] void out_of_memory(const Device& device, ax_memory_kind kind, uint64_t bytes, uint64_t left) {
  static constexpr const char* kNames[] = {"device", "pinned host", "shared"};
  throw Failure(AX_OUT_OF_MEMORY, "device " + std::to_string(device.ordinal) + " has " + std::to_string(left) +
                                      " bytes left of " + std::to_string(device.total_memory) + "; " +
                                      std::to_string(bytes) + " bytes of " + kNames[kind] + " memory were asked for");
}

// Takes `bytes` of the device's share, so that two threads cannot both get the last of it.
void reserve(Device& device, ax_memory_kind kind, uint64_t bytes) {
  const uint64_t before = device.used.fetch_add(bytes);
  if (before + bytes <= device.total_memory && before + bytes >= bytes) return;
  device.used.fetch_sub(bytes);
  out_of_memory(device, kind, bytes, device.total_memory - std::min(before, device.total_memory));
}

void* host_memory(Device& device, uint64_t bytes) {
  if (bytes >= kSmallAllocation) {
    const uint64_t left = host_left();
    if (bytes > left) out_of_memory(device, AX_MEMORY_HOST, bytes, left);
  }
  void* pointer = sycl::aligned_alloc_host(kAlignment, bytes, device.context);
  if (pointer == nullptr) out_of_memory(device, AX_MEMORY_HOST, bytes, host_left());
  return pointer;
}

void* device_memory(Device& device, ax_memory_kind kind, uint64_t bytes) {
  if (bytes >= kSmallAllocation && device.is_cpu()) {
    const uint64_t left = host_left();
    if (bytes > left) out_of_memory(device, kind, bytes, std::min(left, free_memory(device)));
  }
  reserve(device, kind, bytes);
  char* base = nullptr;
  try {
    const auto allocate = [&](uint64_t all) {
      return kind == AX_MEMORY_SHARED ? sycl::aligned_alloc_shared(kAlignment, all, device.device, device.context)
                                      : sycl::aligned_alloc_device(kAlignment, all, device.device, device.context);
    };
    uint64_t margin = device.is_cpu() ? kMargin : 0;
    if (margin != 0) base = static_cast<char*>(allocate(bytes + 2 * margin));
    if (base == nullptr) base = static_cast<char*>(allocate(bytes + 2 * (margin = 0)));
    if (base == nullptr) out_of_memory(device, kind, bytes, free_memory(device));
    std::lock_guard lock(state().handed_out_mutex);
    state().handed_out.emplace(base + margin, Allocation{base, bytes});
    return base + margin;
  } catch (...) {
    device.used.fetch_sub(bytes);
    if (base != nullptr) sycl::free(base, device.context);
    throw;
  }
}

}  // namespace

const std::vector<std::unique_ptr<Device>>& devices() { return state().devices; }

Device& device_at(int ordinal) {
  const auto& all = devices();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= all.size()) {
    throw Failure(AX_INVALID,
                  "there is no device " + std::to_string(ordinal) + "; the driver shows " + std::to_string(all.size()));
  }
  return *all[static_cast<size_t>(ordinal)];
}

std::string description() {
  std::string text = "sycl " + std::to_string(__LIBSYCL_MAJOR_VERSION) + "." + std::to_string(__LIBSYCL_MINOR_VERSION);
  if (devices().empty()) return text;
  const Device& first = *devices().front();
  text += (first.is_cpu() ? ", opencl-cpu " : ", level-zero ") +
          first.device.get_info<sycl::info::device::driver_version>();
  if (!first.is_cpu()) return text;
  cl_device_id native = sycl::get_native<sycl::backend::opencl>(first.device);
  const bool served = Entry::serves(native);
  clReleaseDevice(native);
  return text + (served ? ", whose kernels are called" : ", whose kernels go through its runtime");
}

ax_status open(int wanted) {
  State& s = state();
  std::lock_guard lock(s.open_mutex);
  if (!s.opened) {
    s.opened = true;
    s.open_status = guarded(AX_NO_DEVICE, [&] { find_devices(wanted); });
    if (s.open_status != AX_OK) s.open_error = last_error();
    if (s.open_status == AX_OK && device_at(0).is_cpu()) watch_faults();
  }
  return s.open_status == AX_OK ? AX_OK : set_error(s.open_status, s.open_error);
}

ax_status device_count(int* count) {
  *count = static_cast<int>(devices().size());
  return AX_OK;
}

ax_status device_properties(int device, ax_device_properties* out) {
  return guarded(AX_INVALID, [&] {
    const Device& d = device_at(device);
    *out = ax_device_properties{};
    fill_identity(d, *out);
    fill_sizes(d, *out);
    fill_engines(d, *out);
    fill_features(d, *out);
  });
}

ax_status memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded(AX_INVALID, [&] {
    const Device& d = device_at(device);
    *total_bytes = d.total_memory;
    *free_bytes = free_memory(d);
  });
}

ax_status can_access_peer(int device, int peer, int* yes) {
  return guarded(AX_INVALID, [&] {
    Device &a = device_at(device), &b = device_at(peer);
    *yes = a.is_cpu() || a.device == b.device ||
           a.device.ext_oneapi_can_access_peer(b.device, sycl::ext::oneapi::peer_access::access_supported);
  });
}

ax_status allocate(int device, ax_memory_kind kind, uint64_t bytes, void** out) {
  return guarded(AX_OUT_OF_MEMORY, [&] {
    require(bytes > 0, "an allocation of 0 bytes was asked for");
    require(kind >= AX_MEMORY_DEVICE && kind <= AX_MEMORY_SHARED, "no such kind of memory");
    Device& d = device_at(device);
    *out = kind == AX_MEMORY_HOST ? host_memory(d, bytes) : device_memory(d, kind, bytes);
  });
}

ax_status deallocate(int device, ax_memory_kind kind, void* pointer) {
  return guarded(AX_INVALID, [&] {
    if (pointer == nullptr) return;
    Device& d = device_at(device);
    void* base = pointer;
    if (kind != AX_MEMORY_HOST) {
      std::lock_guard lock(state().handed_out_mutex);
      const auto found = state().handed_out.find(pointer);
      require(found != state().handed_out.end(),
              "the pointer to free was not allocated by this driver, or was freed before");
      d.used.fetch_sub(found->second.bytes);
      base = found->second.base;
      state().handed_out.erase(found);
    }
    sycl::free(base, d.context);
  });
}

}  // namespace anyxpu::sycl_driver
