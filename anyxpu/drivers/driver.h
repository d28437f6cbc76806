/* All that a device must answer to be an anyxpu device.
 *
 * A driver is one shared library that exports `anyxpu_driver()`. Nothing here knows of PyTorch: handles are
 * opaque, sizes are bytes, devices are ordinals from 0. A vendor who wants to bring up hardware writes one of
 * these; everything above (streams, allocator, operators, compiler) comes with anyxpu.
 *
 * Rules every driver keeps
 * - Every function may be called from any thread at any time after `open`.
 * - A queue is in order. Work on two queues is unordered unless an event orders it.
 * - A function that enqueues does not wait for work that was there before, and may report an earlier failure of its
 *   queue. What is little it may do at once.
 * - A function that fails returns a status other than AX_OK and leaves one sentence, with what the device
 *   answered, in `last_error()` of the calling thread. A failed call leaves the device usable unless it
 *   returns AX_DEVICE_LOST.
 */
#ifndef ANYXPU_DRIVER_H
#define ANYXPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AX_DRIVER_ABI 7

typedef enum ax_status {
  AX_OK = 0,
  AX_NOT_READY = 1,     /* a query: the work is not done yet; not an error */
  AX_OUT_OF_MEMORY = 2, /* device or pinned memory is exhausted */
  AX_BUILD_FAILED = 3,  /* a module did not compile or load */
  AX_LAUNCH_FAILED = 4, /* a kernel could not be enqueued, or failed while it ran */
  AX_INVALID = 5,       /* the caller's arguments are wrong */
  AX_UNSUPPORTED = 6,   /* the device cannot do this at all */
  AX_NO_DEVICE = 7,     /* the driver's runtime is missing, or it finds no device */
  AX_DEVICE_LOST = 8    /* the device does not answer any more */
} ax_status;

typedef enum ax_device_type { AX_DEVICE_CPU = 0, AX_DEVICE_GPU = 1, AX_DEVICE_OTHER = 2 } ax_device_type;

typedef enum ax_memory_kind {
  AX_MEMORY_DEVICE = 0,
  AX_MEMORY_HOST = 1, /* pinned; the device reads it directly and copies to and from it are asynchronous */
  AX_MEMORY_SHARED = 2
} ax_memory_kind;

typedef enum ax_module_format {
  AX_MODULE_OPENCL_C = 0, /* text */
  AX_MODULE_SPIRV = 1,
  AX_MODULE_NATIVE = 2 /* what `module_native` of the same driver and device returned, or ocloc's zebin */
} ax_module_format;

typedef struct ax_queue ax_queue;
typedef struct ax_event ax_event;
typedef struct ax_module ax_module;
typedef struct ax_kernel ax_kernel;

#define AX_MAX_SUB_GROUP_SIZES 8

typedef struct ax_device_properties {
  char name[256];
  char platform_name[256]; /* the runtime behind it: "Intel(R) OpenCL", "Intel(R) oneAPI Unified Runtime over
                              Level-Zero", ... */
  char vendor[128];
  char driver_version[128];
  char version[128]; /* of the device's interface, digits and points: "3.1" (OpenCL), "20.1.0" (Level Zero) */
  char target[32];   /* what the compiler should generate for: "cpu", "bmg", "pvc", ...; "" if unknown */
  uint8_t uuid[16];
  ax_device_type type;
  uint32_t vendor_id;
  uint32_t device_id;
  uint64_t architecture;           /* SYCL's architecture number; 0 where the device has none */
  uint64_t total_memory;           /* bytes */
  uint64_t local_mem_size;         /* bytes a work-group may use */
  uint64_t first_level_cache_size; /* bytes, of one core; 0 unknown */
  uint64_t last_level_cache_size;
  uint32_t max_compute_units;
  uint32_t gpu_eu_count;       /* vector engines; on a CPU its compute units */
  uint32_t gpu_subslice_count; /* Xe cores; on a CPU its compute units */
  uint32_t gpu_eu_count_per_subslice;
  uint32_t gpu_eu_simd_width;
  uint32_t gpu_hw_threads_per_eu;
  uint32_t max_work_group_size;
  uint32_t max_num_sub_groups;
  uint32_t sub_group_sizes[AX_MAX_SUB_GROUP_SIZES]; /* zero-terminated when shorter */
  uint32_t memory_clock_rate;                       /* MHz; 0 unknown */
  uint32_t memory_bus_width;                        /* bits; 0 unknown */
  uint32_t clock_rate;                              /* MHz */
  uint8_t has_fp16;
  uint8_t has_fp64;
  uint8_t has_atomic64;
  uint8_t has_bfloat16_conversions;
  uint8_t has_subgroup_matrix_multiply_accumulate;
  uint8_t has_subgroup_matrix_multiply_accumulate_tensor_float32;
  uint8_t has_subgroup_2d_block_io;
  uint8_t host_accessible; /* device memory can be read and written by the host at the same address */
  uint8_t is_integrated;
  uint8_t compiles_opencl_c; /* module_create takes AX_MODULE_OPENCL_C */
} ax_device_properties;

typedef struct ax_arg {
  const void* value; /* the bytes of the argument; for a pointer, the address of a void* */
  uint32_t size;     /* bytes; for local memory, how many */
  uint32_t kind;     /* ax_arg_kind */
} ax_arg;

typedef enum ax_arg_kind {
  AX_ARG_VALUE = 0,   /* size bytes by value */
  AX_ARG_POINTER = 1, /* a device, host or shared address; may be null */
  AX_ARG_LOCAL = 2    /* size bytes of local (work-group) memory; value is ignored */
} ax_arg_kind;

typedef struct ax_kernel_info {
  uint32_t max_work_group_size;
  uint32_t sub_group_size; /* 0 unknown */
  uint32_t local_mem_size;
  uint32_t private_mem_size;
  uint32_t spill_size; /* 0 unknown or none */
  /* Work-groups, of the size that the kernel requires, that run at once on an idle device while the host waits for it,
   * so that one may wait for another; 0 unknown. */
  uint32_t concurrent_groups;
  uint32_t called; /* 1: little work of it is done by a mere call of its machine code */
} ax_kernel_info;

/* When the device worked on a command, in nanoseconds of the host's CLOCK_MONOTONIC. */
typedef struct ax_interval {
  uint64_t begin;
  uint64_t end;
} ax_interval;

typedef struct ax_driver {
  uint32_t abi; /* AX_DRIVER_ABI */
  const char* name;

  /* Start the runtime once. `devices` > 0 asks that the first device be shown as that many separate ones
   * (ANYXPU_DEVICES); 0 shows what is there. Only the first call acts. AX_NO_DEVICE says what is missing. */
  ax_status (*open)(int devices);
  ax_status (*device_count)(int* count);
  ax_status (*device_properties)(int device, ax_device_properties* out);
  ax_status (*memory_info)(int device, uint64_t* free_bytes, uint64_t* total_bytes);
  ax_status (*can_access_peer)(int device, int peer, int* yes);

  /* `bytes` > 0. The address is aligned to at least 64 bytes. Freeing does not wait for work that uses it. */
  ax_status (*allocate)(int device, ax_memory_kind kind, uint64_t bytes, void** out);
  ax_status (*deallocate)(int device, ax_memory_kind kind, void* pointer);

  /* priority < 0 is high, 0 normal, > 0 low. The sycl driver's handle may be used as a `sycl::queue*`:
   * its first member is one. */
  ax_status (*queue_create)(int device, int priority, ax_queue** out);
  ax_status (*queue_destroy)(ax_queue* queue);
  ax_status (*queue_synchronize)(ax_queue* queue);
  ax_status (*queue_query)(ax_queue* queue); /* AX_OK: idle; AX_NOT_READY: work left */
  /* Where the host's threads do a device's work: be one of them until the queue has none left. Returns at once
   * elsewhere. What fails meanwhile is reported by who waits for the queue. */
  ax_status (*queue_help)(ax_queue* queue);

  /* Any of device, pinned, shared and ordinary host memory on either side, of any device of this driver. For
   * ordinary host memory the host bytes may be read or written until the queue has passed this point. */
  ax_status (*copy)(ax_queue* queue, void* dst, const void* src, uint64_t bytes);
  /* `count` repetitions of a pattern of 1, 2, 4, 8 or 16 bytes. */
  ax_status (*fill)(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t count);
  /* Run fn(data) on a host thread in the queue's order: any one, also one that waits for another queue. So fn must
   * neither call into the driver nor wait for what such a thread would do next. */
  ax_status (*host_call)(ax_queue* queue, void (*fn)(void*), void* data);

  /* The sycl driver's handle may be used as a `sycl::event*`. Recording again replaces what it stands for. */
  ax_status (*event_create)(int device, int timing, ax_event** out);
  ax_status (*event_destroy)(ax_event* event);
  ax_status (*event_record)(ax_event* event, ax_queue* queue);
  ax_status (*event_wait)(ax_event* event, ax_queue* queue); /* queue's later work waits; any device */
  ax_status (*event_query)(ax_event* event);
  ax_status (*event_synchronize)(ax_event* event);
  /* Milliseconds from `start` to `end`; both recorded with timing and done, else AX_INVALID / AX_NOT_READY. */
  ax_status (*event_elapsed)(ax_event* start, ax_event* end, double* milliseconds);
  /* For profilers. `event`, created with timing, stands for the next command (copy, fill, host_call, launch) that the
   * calling thread enqueues or does at once; NULL takes that back. It is good for `event_interval` and
   * `event_destroy` alone. */
  ax_status (*event_of_next)(ax_event* event);
  /* AX_NOT_READY until that command is done; AX_UNSUPPORTED where the device does not tell. */
  ax_status (*event_interval)(ax_event* event, ax_interval* out);

  /* `options` are the OpenCL C build options. On AX_BUILD_FAILED last_error() holds the build log. */
  ax_status (*module_create)(int device, ax_module_format format, const void* data, uint64_t bytes, const char* options,
                             ax_module** out);
  /* The module's native code for this device. Call with data = NULL to learn the size. */
  ax_status (*module_native)(ax_module* module, void* data, uint64_t* bytes);
  ax_status (*module_destroy)(ax_module* module);
  ax_status (*kernel_create)(ax_module* module, const char* name, ax_kernel** out);
  ax_status (*kernel_information)(ax_kernel* kernel, ax_kernel_info* out);
  ax_status (*kernel_destroy)(ax_kernel* kernel);
  /* `groups` work-groups of `local` work-items in each of three dimensions, x first. Arguments are copied.
   * `work` estimates what all of them do together, in simple operations on one element; 0 is unknown. A driver may
   * run what it knows to end soon before the call returns, where nothing before it in the queue is left to do. */
  ax_status (*launch)(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                      const ax_arg* args, uint32_t arg_count, uint64_t work);

  /* The calling thread's last failure, in one sentence (or a build log). Never NULL. */
  const char* (*last_error)(void);
  /* What this driver is built on, for `anyxpu doctor`: "sycl 2026.2, opencl-cpu 2026.22.10". */
  const char* (*description)(void);
} ax_driver;

/* The one symbol a driver exports. */
const ax_driver* anyxpu_driver(void);

#ifdef __cplusplus
}
#endif
#endif
