// Waiting for the device so that Ctrl-C gets out of it. A driver's own wait cannot be left, and Python handles a signal
// in its main thread alone: there another thread waits in the driver, and this one looks for signals meanwhile.
#pragma once

#include <c10/core/Storage.h>

#include <vector>

#include "shim/runtime.h"

namespace anyxpu {

// The host's memory that a queue reads or writes.
using Storages = std::vector<c10::Storage>;
// Both block until the device is done and throw c10::Error "anyxpu: cannot <what>: ..." where that failed. In Python's
// main thread they throw what a signal's handler raises (KeyboardInterrupt), with a note that the device goes on.
// Called with the GIL or without.
void wait_for_queue(ax_queue* queue, c10::DeviceIndex device, const char* what, Storages touched = {});
void wait_for_event(ax_event* event, const char* what);

// `queue` is one of the runtime's own, which live as long as the process.
void note_own_queue(ax_queue* queue);
bool is_own_queue(ax_queue* queue);

// What is enqueued, in operations as ax_driver::launch counts them; 0 is work of which nothing is known. Handing a wait
// over to another thread costs tens of microseconds, and is worth it only where the wait may be long.
// Waits where the queue is very far behind, as CUDA's launches do: a program that launches faster than its device works
// would otherwise let the queue grow for ever, and another thread's wait for it never end. `device` is the queue's.
void note_work(ax_queue* queue, c10::DeviceIndex device, uint64_t operations);
// `queue` waits for an event now, and so for what any queue has to do.
void note_dependence(ax_queue* queue);

}  // namespace anyxpu
