// Storages of a device over the host's shared memory: what two processes see alike where a device works in host memory.
#include <ATen/MapAllocator.h>
#include <torch/csrc/DynamicTypes.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "shim/allocator.h"
#include "shim/bindings.h"
#include "shim/host_memory.h"

namespace anyxpu {
namespace {

namespace py = pybind11;
using c10::Storage;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

void let_go(void* host) { delete static_cast<Storage*>(host); }

c10::DataPtr pointer_over(const Storage& host, c10::Device device) {
  return {host.mutable_data(), new Storage(host), &let_go, device};
}

Storage read(const py::handle& object) { return torch::createStorage(object.ptr()); }

py::object wrap(const Storage& storage) { return py::reinterpret_steal<py::object>(torch::createPyObject(storage)); }

// One storage of the device for one of the host's, as long as it lives: two tensors that share memory in the sender do
// so in the receiver.
struct Known {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, WeakStorage> over;
};

Known& known() {
  static auto* leaked = new Known;
  return *leaked;
}

void remember(const Storage& host, const Storage& storage) {
  std::lock_guard lock(known().mutex);
  for (auto entry = known().over.begin(); entry != known().over.end();)
    entry = entry->second.expired() ? known().over.erase(entry) : std::next(entry);
  known().over.insert_or_assign(host.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
}

py::object over_host(const py::handle& object, c10::DeviceIndex index) {
  const Storage host = read(object);
  check_device(index);
  TORCH_CHECK(host_reaches(index), "anyxpu: xpu:", static_cast<int>(index), " does not work in the host's memory");
  {
    std::lock_guard lock(known().mutex);
    const auto found = known().over.find(host.unsafeGetStorageImpl());
    if (found != known().over.end()) {
      if (auto alive = found->second.lock()) return wrap(Storage(std::move(alive)));
    }
  }
  Storage made(Storage::use_byte_size_t(), host.nbytes(), pointer_over(host, c10::Device(c10::kXPU, index)),
               c10::GetAllocator(c10::kXPU),
               /*resizable=*/false);
  remember(host, made);
  return wrap(made);
}

// Nothing may be left to do on the old memory by a stream other than its own. All of it under the GIL, so that a
// program that goes on in another thread launches nothing on the old memory meanwhile.
void move_over_host(const py::handle& object, const py::handle& host_object) {
  const Storage storage = read(object);
  const Storage host = read(host_object);
  TORCH_CHECK(host.nbytes() >= storage.nbytes(), "anyxpu: the shared memory is smaller than the storage");
  std::memcpy(host.mutable_data(), storage.data(), storage.nbytes());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(pointer_over(host, storage.device()));
  storage.unsafeGetStorageImpl()->set_resizable(false);
  remember(host, storage);
}

py::object host_of(const py::handle& object) {
  const Storage storage = read(object);
  if (storage.data_ptr().get_deleter() != &let_go) return py::none();
  return wrap(*static_cast<const Storage*>(storage.data_ptr().get_context()));
}

bool has_descriptor(const py::handle& host) { return at::MapAllocator::fromDataPtr(read(host).data_ptr()) != nullptr; }

}  // namespace

void bind_sharing(py::module_& m) {
  m.def("storage_over_host", &over_host, py::arg("host"), py::arg("device"),
        "A storage of the xpu device over a CPU storage, which it keeps; the same one while it lives.");
  m.def("move_storage_over_host", &move_over_host, py::arg("storage"), py::arg("host"),
        "Move an xpu storage, bytes and all, to where the CPU storage lies, which it keeps. It is not resizable then.");
  m.def("has_descriptor", &has_descriptor, py::arg("host"),
        "Whether shared memory of the host goes to other processes by a file descriptor, and not by a name.");
  m.def("host_of_storage", &host_of, py::arg("storage"), "The CPU storage that an xpu storage lies over, or None.");
}

}  // namespace anyxpu
