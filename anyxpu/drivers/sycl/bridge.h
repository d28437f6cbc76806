// Copies between two GPUs that do not reach each other's memory, by way of the host's.
#pragma once

#include "common.h"

namespace anyxpu::sycl_driver {

// Enqueues the copy in the queue's order and answers true, where it is between two GPUs without access to each other;
// else nothing happened. Where they have access, it is switched on at the first copy.
bool copy_between_gpus(sycl::queue& queue, void* dst, const void* src, uint64_t bytes);

}  // namespace anyxpu::sycl_driver
