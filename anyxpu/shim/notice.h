// What is said of an operator that the host served.
#pragma once

#include <string>

namespace anyxpu {

// Says once of each operator that it ran on the host; anyxpu/ops/notice.py finds the line of the caller's program.
void notice(const std::string& name);

// The host's next call on this thread is only for as long as its kernel is built: nothing is said of it.
void note_building() noexcept;

// Is nothing of this thread left to the host meanwhile? (It has no such kernel, or one that gives something else.)
bool waits_for_kernels() noexcept;

// While it lives, that is so.
class KernelsAwaited {
 public:
  KernelsAwaited() noexcept;
  ~KernelsAwaited();
  KernelsAwaited(const KernelsAwaited&) = delete;
  KernelsAwaited& operator=(const KernelsAwaited&) = delete;

 private:
  bool outer_;
};

// Raises where ANYXPU_EAGER=strict refuses the host: names the operator and the line of the caller's program.
void refuse_if_strict(const std::string& name);

}  // namespace anyxpu
