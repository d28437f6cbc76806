// The threads that ATen's CPU kernels leave behind.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace anyxpu {

// OpenMP's threads do not sleep when a parallel region ends: for some milliseconds they spin and wait for the next one.
// On a CPU device they take the cores from what the device runs next, which then takes up to twice its time. A thread
// that has run a host operator says so, and ends its OpenMP threads before it enqueues much work; the next region makes
// them anew, which takes a tenth of a millisecond. Who chose how they wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT) keeps it.
void note_host_threads();

// `operations` are about to be enqueued on `device`, counted as ax_driver::launch does; 0 is unknown.
void free_cores(c10::DeviceIndex device, uint64_t operations);

}  // namespace anyxpu
