// Modules, kernels and the launch, the part that does not depend on the backend.
#include "modules.h"

#include <cstring>

namespace anyxpu::sycl_driver {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

void set_arguments(sycl::handler& handler, const ax_arg* args, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const ax_arg& arg = args[i];
    const int index = static_cast<int>(i);
    switch (arg.kind) {
      case AX_ARG_POINTER: {
        // OpenCL takes USM addresses through another call than values, and SYCL tells them by their type.
        void* pointer;
        std::memcpy(&pointer, arg.value, sizeof(pointer));
        handler.set_arg(index, pointer);
        break;
      }
      case AX_ARG_LOCAL:
        handler.set_arg(index, sycl::local_accessor<std::byte, 1>(arg.size, handler));
        break;
      default:
        handler.set_arg(index, experimental::raw_kernel_arg(arg.value, arg.size));
    }
  }
}

// What a backend would refuse only when the work is already on its way, said at once and with names.
std::string triple(const uint32_t size[3]) {
  return std::to_string(size[0]) + "x" + std::to_string(size[1]) + "x" + std::to_string(size[2]);
}

void check_arguments(const ax_kernel& kernel, const ax_arg* args) {
  for (size_t i = 0; i < kernel.arg_bytes.size(); ++i) {
    const uint32_t wanted = kernel.arg_bytes[i], given = args[i].size;
    if (args[i].kind != AX_ARG_VALUE || wanted == 0 || wanted == given) continue;
    throw Failure(AX_LAUNCH_FAILED, "argument " + std::to_string(i) + " of kernel " + kernel.name + " has " +
                                        std::to_string(wanted) + " bytes; it was given " + std::to_string(given));
  }
}

void check_device(const ax_kernel& kernel, const sycl::queue& queue) {
  if (kernel.owner == nullptr) return;
  if (queue.get_device() == kernel.owner->device && queue.get_context() == kernel.owner->context) return;
  throw Failure(AX_INVALID, "kernel " + kernel.name + " was made for device " + std::to_string(kernel.owner->ordinal) +
                                " and launched on a queue of another one");
}

void check_launch(const ax_kernel& kernel, const uint32_t local[3], uint32_t arg_count) {
  if (arg_count != kernel.arg_count) {
    throw Failure(AX_INVALID, "kernel " + kernel.name + " takes " + std::to_string(kernel.arg_count) +
                                  " arguments; it was given " + std::to_string(arg_count));
  }
  const uint64_t items = uint64_t{local[0]} * local[1] * local[2];
  if (items == 0 || items > kernel.info.max_work_group_size) {
    throw Failure(AX_INVALID, "kernel " + kernel.name + " was launched with work-groups of " + std::to_string(items) +
                                  " work-items; the device takes 1 to " +
                                  std::to_string(kernel.info.max_work_group_size));
  }
  const uint32_t* required = kernel.required_local;
  if (required[0] != 0 && (local[0] != required[0] || local[1] != required[1] || local[2] != required[2])) {
    throw Failure(AX_INVALID, "kernel " + kernel.name + " was launched with work-groups of " + triple(local) +
                                  "; its source requires " + triple(required));
  }
}

// False where the calling thread could not, and nothing happened.
bool run_here(const ax_kernel& kernel, const uint32_t groups[3], const uint32_t local[3], const ax_arg* args,
              uint32_t arg_count, uint64_t work, ax_event* timed) {
  const uint64_t began = timed == nullptr ? 0 : steady_now();
  if (kernel.entry && Entry::takes(local, args, arg_count)) {
    if (!kernel.entry->run(groups, local, args, arg_count, kernel.label, work)) return false;
  } else {
    const RunningHere running(kernel.label);
    if (!InPlace::suits(work) || !kernel.in_place->run(kernel.direct.get(), groups, local, args, arg_count))
      return false;
  }
  done_here(timed, began);
  return true;
}

}  // namespace

ax_status module_create(int device, ax_module_format format, const void* data, uint64_t bytes, const char* options,
                        ax_module** out) {
  return guarded(AX_BUILD_FAILED, [&] {
    require(data != nullptr && bytes > 0, "a module was asked for without any code");
    require(format >= AX_MODULE_OPENCL_C && format <= AX_MODULE_NATIVE, "no such format of modules");
    Device& d = device_at(device);
    const Code code{format, data, bytes, options != nullptr ? options : ""};
    auto make = d.backend == sycl::backend::opencl ? make_opencl_module : make_level_zero_module;
    *out = make(d, code).release();
  });
}

ax_status module_native(ax_module* module, void* data, uint64_t* bytes) {
  return guarded(AX_INVALID, [&] {
    const std::vector<uint8_t> native = module->native();
    const uint64_t room = *bytes;
    *bytes = native.size();
    if (data == nullptr) return;
    require(room >= native.size(), "the buffer is smaller than the module's native code");
    std::memcpy(data, native.data(), native.size());
  });
}

ax_status module_destroy(ax_module* module) {
  return guarded(AX_INVALID, [&] { delete module; });
}

ax_status kernel_create(ax_module* module, const char* name, ax_kernel** out) {
  return guarded(AX_INVALID, [&] {
    std::unique_ptr<ax_kernel> made = module->kernel(name);
    made->label = remembered_name(made->name);
    *out = made.release();
  });
}

ax_status kernel_information(ax_kernel* kernel, ax_kernel_info* out) {
  *out = kernel->info;
  return AX_OK;
}

ax_status kernel_destroy(ax_kernel* kernel) {
  return guarded(AX_INVALID, [&] { delete kernel; });
}

ax_status launch(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                 const ax_arg* args, uint32_t arg_count, uint64_t work) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    check_launch(*kernel, local, arg_count);
    check_arguments(*kernel, args);
    if (groups[0] == 0 || groups[1] == 0 || groups[2] == 0) return;
    const bool little = kernel->in_place != nullptr && (InPlace::suits(work) || (kernel->entry && Entry::suits(work)));
    // SYCL counts dimensions from the slowest, OpenCL from the fastest.
    const sycl::range<3> items(local[2], local[1], local[0]);
    const sycl::range<3> all(size_t{groups[2]} * local[2], size_t{groups[1]} * local[1], size_t{groups[0]} * local[0]);
    ax_event* const timed = take_timed();
    on_queue(queue, [&](sycl::queue& q) {
      check_device(*kernel, q);
      note_launch(kernel->label);
      if (little && q.ext_oneapi_empty() && run_here(*kernel, groups, local, args, arg_count, work, timed)) return;
      const auto command = [&](sycl::handler& handler) {
        set_arguments(handler, args, arg_count);
        handler.parallel_for(sycl::nd_range<3>(all, items), kernel->kernel);
      };
      if (timed == nullptr) return experimental::submit(q, command);
      const uint64_t asked = steady_now();
      enqueued(timed, asked, q.submit(command));
    });
  });
}

}  // namespace anyxpu::sycl_driver
