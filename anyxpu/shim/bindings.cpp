// The Python face of driver, devices, streams and generators. anyxpu/runtime puts it behind torch._C._xpu_*.
#include "shim/bindings.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "shim/accelerator.h"
#include "shim/kept_copies.h"
#include "shim/program.h"
#include "shim/recording.h"
#include "shim/runtime.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using Properties = ax_device_properties;

const char* type_name(ax_device_type type) {
  static constexpr const char* kNames[] = {"cpu", "gpu", "accelerator"};
  return kNames[type];
}

std::vector<uint32_t> sub_group_sizes(const Properties& p) {
  std::vector<uint32_t> sizes;
  for (uint32_t size : p.sub_group_sizes)
    if (size) sizes.push_back(size);
  return sizes;
}

void bind_properties(py::module_& m) {
  auto c = py::class_<Properties>(m, "_XpuDeviceProperties", "What a device is and can do; see driver.h.");
#define TEXT(name) c.def_property_readonly(#name, [](const Properties& p) { return std::string(p.name); })
#define NUMBER(name) c.def_property_readonly(#name, [](const Properties& p) { return p.name; })
#define FLAG(name) c.def_property_readonly(#name, [](const Properties& p) { return p.name != 0; })
  TEXT(name);
  TEXT(platform_name);
  TEXT(vendor);
  TEXT(driver_version);
  TEXT(version);
  TEXT(target);
  NUMBER(vendor_id);
  NUMBER(device_id);
  NUMBER(architecture);
  NUMBER(total_memory);
  NUMBER(local_mem_size);
  NUMBER(first_level_cache_size);
  NUMBER(last_level_cache_size);
  NUMBER(max_compute_units);
  NUMBER(gpu_eu_count);
  NUMBER(gpu_subslice_count);
  NUMBER(gpu_eu_count_per_subslice);
  NUMBER(gpu_eu_simd_width);
  NUMBER(gpu_hw_threads_per_eu);
  NUMBER(max_work_group_size);
  NUMBER(max_num_sub_groups);
  NUMBER(memory_clock_rate);
  NUMBER(memory_bus_width);
  NUMBER(clock_rate);
  FLAG(has_fp16);
  FLAG(has_fp64);
  FLAG(has_atomic64);
  FLAG(has_bfloat16_conversions);
  FLAG(has_subgroup_matrix_multiply_accumulate);
  FLAG(has_subgroup_matrix_multiply_accumulate_tensor_float32);
  FLAG(has_subgroup_2d_block_io);
  FLAG(host_accessible);
  FLAG(compiles_opencl_c);
#undef TEXT
#undef NUMBER
#undef FLAG
  c.def_property_readonly("is_integrated_gpu",
                          [](const Properties& p) { return p.type == AX_DEVICE_GPU && p.is_integrated != 0; });
  c.def_property_readonly("type", [](const Properties& p) { return type_name(p.type); });
  c.def_property_readonly("sub_group_sizes", sub_group_sizes);
  c.def_property_readonly(
      "uuid", [](const Properties& p) { return py::bytes(reinterpret_cast<const char*>(p.uuid), sizeof p.uuid); });
  c.def("__repr__", [](const Properties& p) {
    std::ostringstream out;
    out << "_XpuDeviceProperties(name='" << p.name << "', platform_name='" << p.platform_name << "', type='"
        << type_name(p.type) << "', device_id=0x" << std::hex << p.device_id << std::dec << ", driver_version='"
        << p.driver_version << "', total_memory=" << p.total_memory / (1024 * 1024)
        << "MB, max_compute_units=" << p.max_compute_units << ", gpu_eu_count=" << p.gpu_eu_count
        << ", gpu_subslice_count=" << p.gpu_subslice_count << ", max_work_group_size=" << p.max_work_group_size
        << ", max_num_sub_groups=" << p.max_num_sub_groups << ", local_mem_size=" << p.local_mem_size
        << ", has_fp16=" << int(p.has_fp16) << ", has_fp64=" << int(p.has_fp64)
        << ", has_atomic64=" << int(p.has_atomic64) << ")";
    return out.str();
  });
}

using StreamParts = std::tuple<int64_t, int64_t, int64_t>;

StreamParts parts(c10::Stream stream) {
  return {stream.id(), stream.device_index(), static_cast<int64_t>(stream.device_type())};
}

c10::DeviceIndex index(int64_t device) {
  TORCH_CHECK(device >= -1 && device < 128, "XPU error: invalid device ordinal ", device);
  return static_cast<c10::DeviceIndex>(device);
}

void bind_driver(py::module_& m) {
  m.def("set_driver_resolver", [](py::function resolver) {
    // Leaked on purpose: it may be asked for while the interpreter is being taken down.
    auto* held = new py::function(std::move(resolver));
    set_driver_resolver([held] {
      py::gil_scoped_acquire gil;
      try {
        auto [path, devices] = (*held)().cast<std::pair<std::string, int>>();
        return DriverChoice{path, devices};
      } catch (py::error_already_set& error) {
        TORCH_CHECK(false, py::str(error.value()).cast<std::string>());
      }
    });
  });
  m.def("start", [] { driver(); }, py::call_guard<py::gil_scoped_release>());
  m.def("started", &driver_started);
  m.def("become_accelerator", &become_accelerator);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("unavailable_reason", &unavailable_reason);
  m.def("driver_name", [] { return driver().name; });
  m.def("driver_description", [] { return driver().description(); });
}

void bind_devices(py::module_& m) {
  m.def("device_count", [] { return int(device_count()); }, py::call_guard<py::gil_scoped_release>());
  m.def("current_device", [] { return int(current_device()); });
  m.def("set_device", [](int64_t device) {
    if (device >= 0) set_current_device(index(device));
  });
  m.def("exchange_device", [](int64_t device) {
    int previous = current_device();
    if (device < 0) return -1;
    set_current_device(index(device));
    return previous;
  });
  m.def("properties", [](int64_t device) { return properties(index(device)); });
  m.def("can_access_peer", [](int64_t device, int64_t peer) {
    check_device(index(device));
    check_device(index(peer));
    int yes = 0;
    check(driver().can_access_peer(int(device), int(peer), &yes), "ask for peer access");
    return yes != 0;
  });
  m.def(
      "sleep",
      [](int64_t cycles) {
        const auto device = current_device();
        const int64_t mhz = std::max<int64_t>(1, properties(device).clock_rate);
        auto time = std::make_unique<std::chrono::microseconds>(std::max<int64_t>(0, cycles / mhz));
        check(
            driver().host_call(
                current_queue(device),
                [](void* data) {
                  const std::unique_ptr<std::chrono::microseconds> time(static_cast<std::chrono::microseconds*>(data));
                  std::this_thread::sleep_for(*time);
                },
                time.get()),
            "put a sleep into a stream");
        note_work(current_queue(device), device, 0);
        (void)time.release();
      },
      py::arg("cycles"), py::call_guard<py::gil_scoped_release>(),
      "Keep the current stream busy for so many cycles of the device's clock; returns at once.");
  m.def(
      "synchronize", [](int64_t device) { synchronize_device(index(device)); }, py::arg("device") = -1,
      py::call_guard<py::gil_scoped_release>());
}

void bind_streams(py::module_& m) {
  m.def(
      "note_work",
      [](int64_t device, uint64_t operations) { note_work(current_queue(index(device)), index(device), operations); },
      "Say how many operations another than the launcher has put into the device's current stream.");
  m.def(
      "note_written",
      [](uintptr_t address) {
        note_written(reinterpret_cast<const void*>(address));
        if (the_recording != nullptr) the_recording->noted_written(reinterpret_cast<const void*>(address));
      },
      py::arg("address"), "Say that another than the launcher is about to write into the block of memory around it.");
  m.def(
      "find_copy",
      [](const at::Tensor& tensor, uint64_t form) {
        const KeptCopy found = ask_for_copy(tensor, form, current_queue(tensor.device().index()));
        std::optional<at::Tensor> copy;
        if (found.copy) {
          copy = at::detail::make_tensor<c10::TensorImpl>(
              c10::Storage(found.copy), c10::DispatchKeySet(c10::DispatchKey::XPU), caffe2::TypeMeta::Make<uint8_t>());
          copy->unsafeGetTensorImpl()->set_sizes_contiguous(static_cast<int64_t>(found.copy.nbytes()));
        }
        return std::make_tuple(found.token, copy, found.wanted);
      },
      py::arg("tensor"), py::arg("form"),
      "(token, copy, wanted) of a copy kept in such a form for the current stream. The copy is a tensor of uint8, or "
      "None where there is none; keep_copy keeps one under the token, which is 0 where nothing of this memory can be "
      "kept; wanted says that it was asked for before, and the memory is as it was.");
  m.def(
      "keep_copy",
      [](const at::Tensor& tensor, uint64_t form, uint64_t token, const at::Tensor& copy) {
        keep_copy(tensor, form, current_queue(tensor.device().index()), token, copy);
      },
      py::arg("tensor"), py::arg("form"), py::arg("token"), py::arg("copy"),
      "Keep what work of the current stream makes of a tensor until something writes that tensor's memory.");
  m.def("drop_copies", &drop_copies, "Free every kept copy; False if there was none.");
  m.def("current_raw_stream", [](int64_t device) {
    driver();
    return reinterpret_cast<uintptr_t>(current_queue(index(device)));
  });
  m.def("current_stream", [](int64_t device) { return parts(current_stream(index(device))); });
  m.def("set_stream", [](int64_t id, int64_t device) {
    exchange_current_stream(make_stream(id, index(device)));
    set_current_device(index(device));
  });
  m.def("new_stream", [](int64_t device, int priority) { return parts(stream_from_pool(index(device), priority)); });
  m.def("external_stream", [](uintptr_t queue, int64_t device) {
    return parts(stream_from_external(reinterpret_cast<ax_queue*>(queue), index(device)));
  });
  m.def("stream_priority", [](int64_t id, int64_t device) { return stream_priority(make_stream(id, index(device))); });
  m.def("stream_queue",
        [](int64_t id, int64_t device) { return reinterpret_cast<uintptr_t>(queue(make_stream(id, index(device)))); });
}

double event_elapsed(uintptr_t start, uintptr_t end) {
  TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
  double milliseconds = 0;
  ax_status status =
      driver().event_elapsed(reinterpret_cast<ax_event*>(start), reinterpret_cast<ax_event*>(end), &milliseconds);
  TORCH_CHECK(status != AX_NOT_READY, "Both events must be completed before calculating elapsed time.");
  TORCH_CHECK_VALUE(status != AX_INVALID, "Both events must be created with argument 'enable_timing=True'.");
  check(status, "compute the time between two events");
  return milliseconds;
}

}  // namespace

void bind_runtime(py::module_& m) {
  bind_driver(m);
  bind_properties(m);
  bind_devices(m);
  bind_streams(m);
  m.def("event_elapsed", &event_elapsed);
  m.def("default_generator", [](int64_t device) { return default_generator(index(device)); });
}

}  // namespace anyxpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  anyxpu::bind_runtime(m);
  anyxpu::bind_memory(m);
  anyxpu::bind_launch(m);
  anyxpu::bind_ops(m);
  anyxpu::bind_classes(m);
  anyxpu::bind_pointwise(m);
  anyxpu::bind_reductions(m);
  anyxpu::bind_indexing(m);
  anyxpu::bind_foreach(m);
  anyxpu::bind_distributed(m);
  anyxpu::bind_finishing(m);
  anyxpu::bind_sharing(m);
  anyxpu::bind_primitives(m);
  anyxpu::bind_replay(m);
  anyxpu::bind_profiler(m);
  anyxpu::bind_inductor(m);
}
