// The threads that share a kernel's work-groups with the thread that launches it.
#pragma once

#include <cstdint>

namespace anyxpu::sycl_driver {

// As many threads as the process has cores, the calling one among them. Intel's OpenCL runtime hands work to threads of
// its own, which takes 5 microseconds and as many again until they are awake, and deals a kernel's groups out anew each
// time; here each thread takes the same share of every kernel, which then finds in its own cache what it wrote before.
class Crew {
 public:
  // Groups from `first` up to `last`, counted through.
  using Part = void (*)(void* job, uint64_t first, uint64_t last);

  // Has `part` called for all of `count` groups, by `wanted` threads if there are so many, and returns when all are
  // done. False where another thread has the crew: nothing has happened.
  static bool run(uint64_t count, uint64_t wanted, Part part, void* job);
  // std::memmove() and std::memset() by them, where the bytes are many; by this thread alone else.
  static void move(void* to, const void* from, uint64_t bytes);
  static void set(void* to, uint8_t byte, uint64_t bytes);
};

}  // namespace anyxpu::sycl_driver
