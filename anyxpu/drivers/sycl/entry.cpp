#include "entry.h"

#include <CL/cl_ext.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common.h"
#include "crew.h"
#include "opencl_program.h"

namespace anyxpu::sycl_driver {
namespace {

// Releases (CL_DRIVER_VERSION, up to the build) whose way of calling a kernel is the one below.
constexpr std::array<std::string_view, 1> kKnown{"2026.22.10.0"};

constexpr uint32_t kMostBytes = 1024;  // of arguments
// A kernel that wants more memory of its own asks the runtime for it, where the thread's stack is small.
constexpr cl_ulong kMostMemory = 64 << 10;

// What follows a kernel's own arguments. Each work-item is told its sizes from here; the "own" ones are those which its
// code counts by, of the last work-group in a dimension at [1].
struct WorkDescription {
  size_t dimensions;
  size_t offset[3];
  size_t global[3];
  size_t local[2][3];
  size_t groups[3];
  size_t unused[2];
  size_t own_global[3];
  size_t own_local[2][3];
  size_t own_groups[3];
  size_t unknown;
  const void* code[2];
  size_t more[16];  // in case there is more
};
static_assert(offsetof(WorkDescription, groups) == 0x68 && offsetof(WorkDescription, own_global) == 0x90);
static_assert(offsetof(WorkDescription, own_local) == 0xa8 && offsetof(WorkDescription, code) == 0xf8);

constexpr size_t size_of(const ax_arg& arg) { return arg.kind == AX_ARG_POINTER ? sizeof(void*) : arg.size; }
constexpr size_t aligned(size_t at, size_t to) { return (at + to - 1) & ~(to - 1); }

// Arguments lie as a C structure's members do: numbers at multiples of their size. How a structure is aligned is not
// known; where it comes after multiples of eight bytes it makes no difference, if it holds nothing wider. Vectors of 16
// bytes or more would be, and what holds them is a multiple of those.
bool place(size_t& at, const ax_arg& arg) {
  const size_t size = size_of(arg);
  const bool number = size == 1 || size == 2 || size == 4 || size == 8;
  if (number) at = aligned(at, size);
  return arg.kind != AX_ARG_LOCAL && (number || (size % 4 == 0 && size % 16 != 0 && at % 8 == 0));
}

bool is_known(cl_device_id device) {
  const std::string version = device_text(device, CL_DRIVER_VERSION);
  return std::any_of(kKnown.begin(), kKnown.end(), [&](std::string_view known) {
    return std::string_view(version).substr(0, known.size()) == known &&
           (version.size() == known.size() || version[known.size()] == '.');
  });
}

bool is_asked_for() {
  const char* const setting = std::getenv("ANYXPU_ENTRIES");
  return setting == nullptr || std::string_view(setting) != "0";
}

template <typename T>
T asked(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what, T otherwise) {
  T value{};
  return clGetKernelWorkGroupInfo(kernel, device, what, sizeof(value), &value, nullptr) == CL_SUCCESS ? value
                                                                                                      : otherwise;
}

// Whether its work-items lie side by side in the first dimension, for the runtime that made vectors of them. Of others
// it may have chosen another one, and then counts in another order.
bool lies_along_first(cl_kernel kernel, cl_device_id device) {
  const auto groups =
      asked<std::array<size_t, 3>>(kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, std::array<size_t, 3>{});
  if (groups[0] != 0) return groups[1] == 1 && groups[2] == 1;
  size_t lanes = 0;
  return clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_COMPILE_SUB_GROUP_SIZE_INTEL, 0, nullptr, sizeof(lanes),
                                 &lanes, nullptr) == CL_SUCCESS &&
         lanes != 0;
}

// printf() is the runtime's; the binary has the names of the functions that its kernels call.
bool prints(cl_program program) {
  size_t size = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr) != CL_SUCCESS) return true;
  std::string binary(size, '\0');
  char* pointers[] = {binary.data()};
  if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(pointers), pointers, nullptr) != CL_SUCCESS) return true;
  return binary.find("printf") != std::string::npos;
}

#if defined(__x86_64__)
// As the runtime has it for kernels: numbers are rounded to the nearest, subnormal ones are kept, nothing traps.
class RoundingOfKernels {
 public:
  RoundingOfKernels() : before_(_mm_getcsr()) {
    if (before_ != kKernels) _mm_setcsr(kKernels);
  }
  ~RoundingOfKernels() {
    if (_mm_getcsr() != before_) _mm_setcsr(before_);
  }
  RoundingOfKernels(const RoundingOfKernels&) = delete;
  RoundingOfKernels& operator=(const RoundingOfKernels&) = delete;

 private:
  static constexpr unsigned kKernels = 0x1f80;
  const unsigned before_;
};
#endif

struct Job {
  void (*code)(const void* arguments, const size_t* group, void* runtime);
  const void* block;
  std::array<size_t, 2> groups;  // of the first two dimensions
  const char* label;
};

void run_part(void* data, uint64_t first, uint64_t last) {
  const Job& job = *static_cast<const Job*>(data);
  const RunningHere running(job.label);
#if defined(__x86_64__)
  const RoundingOfKernels rounding;
#endif
  const auto [wide, high] = job.groups;
  std::array<size_t, 4> group{first % wide, first / wide % high, first / wide / high};  // and memory: see above
  for (uint64_t i = first; i < last; ++i) {
    job.code(job.block, group.data(), nullptr);
    if (++group[0] < wide) continue;
    group[0] = 0;
    if (++group[1] < high) continue;
    group[1] = 0;
    ++group[2];
  }
}

}  // namespace

std::optional<Entry> Entry::of(cl_program program, cl_kernel kernel, cl_device_id device) {
#if defined(__x86_64__)
  if (!serves(device)) return std::nullopt;
  using Find = cl_int (*)(cl_device_id, cl_program, const char*, cl_ulong*);
  cl_platform_id platform = nullptr;
  clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof(platform), &platform, nullptr);
  const auto find =
      reinterpret_cast<Find>(clGetExtensionFunctionAddressForPlatform(platform, "clGetDeviceFunctionPointerINTEL"));
  std::array<char, 1024> name{};
  if (find == nullptr ||
      clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, name.size(), name.data(), nullptr) != CL_SUCCESS)
    return std::nullopt;
  const cl_ulong own = asked<cl_ulong>(kernel, device, CL_KERNEL_PRIVATE_MEM_SIZE, kMostMemory) +
                       asked<cl_ulong>(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, kMostMemory);
  if (own >= kMostMemory || !lies_along_first(kernel, device) || prints(program)) return std::nullopt;
  cl_ulong address = 0;
  if (find(device, program, name.data(), &address) != CL_SUCCESS || address == 0) return std::nullopt;
  return Entry(reinterpret_cast<Code>(address));
#else
  return std::nullopt;
#endif
}

bool Entry::serves(cl_device_id device) {
#if defined(__x86_64__)
  static const bool asked_for = is_asked_for();
  return asked_for && is_known(device);
#else
  return false;
#endif
}

bool Entry::takes(const uint32_t local[3], const ax_arg* args, uint32_t count) {
  if (local[1] != 1 || local[2] != 1) return false;
  size_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (!place(at, args[i])) return false;
    at += size_of(args[i]);
  }
  return at <= kMostBytes;
}

bool Entry::run(const uint32_t groups[3], const uint32_t local[3], const ax_arg* args, uint32_t count,
                const char* label, uint64_t amount) const {
  alignas(64) std::byte block[kMostBytes + sizeof(WorkDescription)];
  size_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    place(at, args[i]);
    std::memcpy(block + at, args[i].value, size_of(args[i]));
    at += size_of(args[i]);
  }
  WorkDescription work{};
  work.dimensions = 3;
  for (int d = 0; d < 3; ++d) {
    work.groups[d] = work.own_groups[d] = groups[d];
    work.global[d] = work.own_global[d] = size_t{groups[d]} * local[d];
    for (int last = 0; last < 2; ++last) work.local[last][d] = work.own_local[last][d] = local[d];
  }
  work.code[0] = work.code[1] = reinterpret_cast<const void*>(code_);
  std::memcpy(block + aligned(at, sizeof(size_t)), &work, sizeof(work));
  Job job{code_, block, {groups[0], groups[1]}, label};
  const uint64_t all = uint64_t{groups[0]} * groups[1] * groups[2];
  if (all > 1 && amount > kLittleWork) return Crew::run(all, amount / (kLittleWork / 2), run_part, &job);
  run_part(&job, 0, all);
  return true;
}

}  // namespace anyxpu::sycl_driver
