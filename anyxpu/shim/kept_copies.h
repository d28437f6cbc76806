// Copies of device memory in another form, such as weights in the layout that a library's kernels like, kept as long as
// nobody writes what they were made of.
//
// Version counters cannot say that: `parameter.data` has a counter of its own, and so has every view that a kernel of a
// compiled graph writes through. But whatever writes device memory passes through the shim: a launch (any pointer it is
// given may be written through,
// unless its compiler saw that it is only read through), a copy or a fill of the driver, an operator of the host, a
// collective, a library's primitive. Each says so here, and frees the copies of the block of memory that it writes. Who
// writes by means of its own (a SYCL program on the address of a tensor) is not seen.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "drivers/driver.h"

namespace anyxpu {

struct KeptCopy {
  // Of the block's state now: what is made from here on may be kept under it. 0: nothing of this memory can be kept.
  uint64_t token = 0;
  c10::Storage copy;    // empty where there is none
  bool wanted = false;  // asked for before, and the memory is as it was then
};

// The copy of `tensor` in such a form (a number that its maker chose) for work on `queue`.
KeptCopy find_copy(const at::Tensor& tensor, uint64_t form, ax_queue* queue);
// Keeps `copy`, made by work that `queue` has already, unless the memory was written since `token` was given.
void keep_copy(const at::Tensor& tensor, uint64_t form, ax_queue* queue, uint64_t token, const at::Tensor& copy);

// Somebody is about to write at this address, or beyond it in the same block, or frees the block.
void note_written(const void* address);
// The driver's table with launches, copies and fills that note what they write.
const ax_driver* noting_writes(const ax_driver* driver);
// Has launches, copies, fills and host calls go to this table from now on, when what they write is noted.
void give_commands_to(const ax_driver* driver);
// A launch that writes at `written` alone, so that copies of what it reads are kept.
ax_status launch_writing(const void* written, ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3],
                         const uint32_t local[3], const ax_arg* args, uint32_t arg_count, uint64_t operations);
// What launches of this kernel do not write: arguments that are pointers it only reads through, bit i for the i-th. All
// others may be written, of a kernel of which nothing is said every one.
void note_reads(const ax_kernel* kernel, uint64_t arguments);
void forget_reads(const ax_kernel* kernel) noexcept;
// Frees every copy; false if there was none. For want of memory, or when anything may have been written.
bool drop_copies();

}  // namespace anyxpu
