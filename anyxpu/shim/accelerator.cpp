// Which device type ATen takes for the one accelerator of the process.
//
// ATen finds it by asking the hooks of each device type whether they were built; autograd's streams, pinned memory and
// torch.accelerator go by the answer. A torch made for CUDA answers CUDA even where no CUDA device is, and then refuses
// to run backward on xpu. It has no setting for this, so CUDA's hooks are made to answer that they were not built: one
// entry of their virtual table is replaced.
#include "shim/accelerator.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

namespace anyxpu {
namespace {

bool not_built(const at::CUDAHooksInterface*) { return false; }

// Where the virtual table of `hooks` holds isBuilt. By the Itanium C++ ABI, which all of Linux follows: an object
// starts with its table's address, and a pointer to a virtual method is the method's offset in the table plus one.
void** entry_of_is_built(at::CUDAHooksInterface& hooks) {
  bool (at::CUDAHooksInterface::*is_built)() const = &at::CUDAHooksInterface::isBuilt;
  uintptr_t words[2];
  static_assert(sizeof(is_built) == sizeof(words));
  std::memcpy(words, &is_built, sizeof(words));
  TORCH_CHECK((words[0] & 1) != 0 && words[1] == 0, "anyxpu: this compiler's pointers to methods are of another form");
  char* table;
  std::memcpy(&table, static_cast<void*>(&hooks), sizeof(table));
  return reinterpret_cast<void**>(table + words[0] - 1);
}

// Virtual tables lie in memory that the loader made read-only. The page stays writable: it may hold other data, and
// what it allowed before is not known.
void write_read_only(void** entry, void* value) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) & ~(page - 1));
  TORCH_CHECK(mprotect(start, page, PROT_READ | PROT_WRITE) == 0,
              "anyxpu: cannot make xpu the accelerator: mprotect: ", std::strerror(errno));
  *entry = value;
}

}  // namespace

void become_accelerator() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  if (hooks.isBuilt()) write_read_only(entry_of_is_built(hooks), reinterpret_cast<void*>(&not_built));
}

}  // namespace anyxpu
