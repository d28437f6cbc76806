#include "shim/host_threads.h"

#include <chrono>
#include <cstdlib>

#include "shim/runtime.h"

// OpenMP 5.0. Weak: it comes with whatever OpenMP this torch was built with.
extern "C" __attribute__((weak)) int omp_pause_resource_all(int kind);

namespace anyxpu {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSoft = 1;  // omp_pause_soft: settings stay
// libgomp spins 300,000 times, with a pause of 40 to 140 cycles each.
constexpr auto kSpins = std::chrono::milliseconds(20);
// A tenth of a millisecond or more, as others like it tend to follow: ending the threads and making new ones takes 0.1
// to 0.15 ms, and they would spin for many times that.
constexpr uint64_t kMuch = 4'000'000;

thread_local Clock::time_point last_ran;  // the epoch: nothing since the cores were freed

bool chosen_by_user() {
  static const bool chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  return chosen;
}

}  // namespace

void note_host_threads() { last_ran = Clock::now(); }

void free_cores(c10::DeviceIndex device, uint64_t operations) {
  if (last_ran == Clock::time_point{} || (operations != 0 && operations < kMuch)) return;
  const auto since = Clock::now() - last_ran;
  last_ran = {};
  if (since > kSpins || chosen_by_user() || properties(device).type != AX_DEVICE_CPU) return;
  if (omp_pause_resource_all != nullptr) omp_pause_resource_all(kSoft);
}

}  // namespace anyxpu
