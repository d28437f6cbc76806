// A kernel's machine code, called for one work-group after the other without the runtime that made it.
#pragma once

#include <CL/cl.h>

#include <array>
#include <cstdint>
#include <optional>

#include "drivers/driver.h"

namespace anyxpu::sycl_driver {

// What Intel's OpenCL runtime for CPUs calls to run a kernel. To be told of a launch, prepare it and tell of its end
// that runtime takes some 5 microseconds; of a small kernel that is nearly all of its time.
//
// Where the code lies is said by an extension of the runtime (clGetDeviceFunctionPointerINTEL). How it is called is
// written nowhere: it was read from the runtime's own machine code, and holds for the releases of it that entry.cpp
// lists. tests/test_entries.py asks a kernel for all that it is told, called both ways.
class Entry {
 public:
  // Empty where the runtime is of another release, or the kernel may want of it more than to be called: it prints, has
  // much memory of its own, or nothing says that its work-items lie along the first dimension.
  static std::optional<Entry> of(cl_program program, cl_kernel kernel, cl_device_id device);

  // Whether kernels are called so at all: the runtime's release is a known one, and nobody said otherwise.
  static bool serves(cl_device_id device);
  // Whether it can be called so: with few arguments, no work-group's own memory among them, and groups of one
  // dimension.
  static bool takes(const uint32_t local[3], const ax_arg* args, uint32_t count);
  // Runs the kernel, of so much work, to its end: in this thread, or in this and others; false where those are busy,
  // and nothing happened.
  bool run(const uint32_t groups[3], const uint32_t local[3], const ax_arg* args, uint32_t count, const char* label,
           uint64_t work) const;

  // Whether work of this size is the calling thread's, alone or with others: not what it would wait for long.
  static bool suits(uint64_t work) { return work != 0 && work <= kMostWork; }

 private:
  // As ax_driver::launch counts work: some 8 microseconds and 20 milliseconds of one core.
  static constexpr uint64_t kLittleWork = 400'000;
  static constexpr uint64_t kMostWork = (uint64_t{1} << 30) - 1;

  using Code = void (*)(const void* arguments, const size_t* group, void* runtime);
  explicit Entry(Code code) : code_(code) {}

  Code code_;
};

}  // namespace anyxpu::sycl_driver
