// oneDNN's host tasks, taken from it before SYCL has them.
//
// On a CPU every primitive of oneDNN is a host task. SYCL runs those in threads of its own, holds back what comes after
// one until such a thread has told that it is done, and lets the thread that waits for it sleep: between two kernels
// that costs as much as a product of 128 rows takes. And a thread of SYCL's is a master of TBB, to which TBB's workers
// come from OpenCL's.
// Here oneDNN submits to a queue beside, on which nothing ever runs, and its call of handler::SetHostTask, the symbol
// of libsycl by which it hands over the function, comes to `set_host_task` below: what it hands over is then a host
// call of this driver, which OpenCL's own threads run in the order of the queue that was meant.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <sycl/sycl.hpp>
#include <vector>

#include "common.h"
#include "interop.h"

using anyxpu::sycl_driver::guarded_call;

using Task = std::function<void()>;

// libsycl's own; a member function takes its object first, and an object that has a destructor by its address.
void libsycls_set_host_task(sycl::handler*, Task*) __asm__("_ZN4sycl3_V17handler11SetHostTaskESt8functionIFvvEE");

namespace {

constexpr const char* kSetHostTask = "_ZN4sycl3_V17handler11SetHostTaskESt8functionIFvvEE";

using Tasks = std::vector<Task>;

thread_local Tasks* t_taken = nullptr;  // where host tasks of oneDNN in this thread go

void set_host_task(sycl::handler* handler, Task* task) {
  if (t_taken == nullptr) return libsycls_set_host_task(handler, task);
  t_taken->push_back(std::move(*task));
}

// The part of a loaded library that the dynamic linker works with.
struct Dynamic {
  const ElfW(Rela) * calls = nullptr;  // of functions in other libraries
  size_t bytes = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;

  explicit Dynamic(const link_map& library) {
    for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
      const auto address = entry->d_un.d_ptr;
      if (entry->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(address);
      if (entry->d_tag == DT_PLTRELSZ) bytes = entry->d_un.d_val;
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
      if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(address);
    }
  }
};

// Where `library` keeps the address of the function that it calls by that name; null where it calls none.
void** slot_of(const link_map& library, const char* name) {
  const Dynamic dynamic(library);
  if (dynamic.calls == nullptr || dynamic.symbols == nullptr || dynamic.names == nullptr) return nullptr;
  const auto* end = dynamic.calls + dynamic.bytes / sizeof(*dynamic.calls);
  for (const auto* call = dynamic.calls; call < end; ++call) {
    const ElfW(Sym) & symbol = dynamic.symbols[ELF64_R_SYM(call->r_info)];
    if (std::strcmp(dynamic.names + symbol.st_name, name) == 0)
      return reinterpret_cast<void**>(library.l_addr + call->r_offset);
  }
  return nullptr;
}

struct Protected {
  uintptr_t library;
  uintptr_t address;
  bool found = false;
};

// Whether the linker made the address read-only when it was done.
int look_for_protection(dl_phdr_info* info, size_t, void* data) {
  auto* wanted = static_cast<Protected*>(data);
  if (info->dlpi_addr != wanted->library) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & part = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_RELRO && wanted->address >= start && wanted->address < start + part.p_memsz)
      wanted->found = true;
  }
  return 1;
}

bool write_slot(const link_map& library, void** slot, void* value) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(slot);
  Protected read_only{library.l_addr, address};
  dl_iterate_phdr(look_for_protection, &read_only);
  void* const start = reinterpret_cast<void*>(address & ~(page - 1));
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (read_only.found) mprotect(start, page, PROT_READ);
  return true;
}

void run(const Tasks& tasks) {
  for (const Task& task : tasks) task();
}

void run_and_free(void* data) { run(*std::unique_ptr<Tasks>(static_cast<Tasks*>(data))); }

// Handing a host call to OpenCL's threads and waking them takes some 20 microseconds, and TBB's workers then come to
// another master than the last time: a product of 128 rows that is waited for is done up to 1.4 times sooner here, by
// this thread with the workers. One of many is not: while others do it, this thread comes to what is to follow. What
// takes tenths of a second this thread is not kept from other work by.
constexpr uint64_t kLittle = 100'000'000;
constexpr uint64_t kMostOperations = uint64_t{1} << 33;

// Whether it ran at once, in this thread.
bool run_now(ax_queue* handle, const Tasks& tasks, uint64_t operations) {
  // Who waited for the last one is likely to wait for this; little ones may have come before it, as a reorder does.
  if (operations > kMostOperations || (operations > kLittle && !anyxpu::sycl_driver::take_waited())) return false;
  const std::lock_guard gate(anyxpu::sycl_driver::gate_of(handle));
  if (!anyxpu::sycl_driver::hold(handle).ext_oneapi_empty()) return false;
  ax_event* const timed = anyxpu::sycl_driver::take_timed();
  const uint64_t began = timed == nullptr ? 0 : anyxpu::sycl_driver::steady_now();
  run(tasks);
  anyxpu::sycl_driver::done_here(timed, began);
  return true;
}

}  // namespace

// Binds the calls of a loaded library (a handle of dlopen); 0 where it has no such call, and nothing is changed.
ANYXPU_EXPORT int anyxpu_sycl_take_host_tasks(void* handle) {
  link_map* library = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) return 0;
  void** const slot = slot_of(*library, kSetHostTask);
  return slot != nullptr && write_slot(*library, slot, reinterpret_cast<void*>(&set_host_task)) ? 1 : 0;
}

// A queue beside `queue`, to be given to oneDNN and never freed; null where SYCL makes none.
ANYXPU_EXPORT sycl::queue* anyxpu_sycl_queue_beside(const sycl::queue* queue) {
  try {
    return new sycl::queue(queue->get_context(), queue->get_device(), {sycl::property::queue::in_order()});
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Calls `function` with six words, as anyxpu_sycl_guarded_6 does, and has what it hands over as host tasks run in the
// order of `queue`: by this thread where `operations` are not too many and all before is done. Returns the function's
// status, -1 where something threw, or -2 where the function succeeded and handed over nothing.
ANYXPU_EXPORT int anyxpu_sycl_take_6(ax_queue* queue, uint64_t operations, anyxpu_sycl_six_words function, uint64_t a,
                                     uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
  return guarded_call([&] {
    auto tasks = std::make_unique<Tasks>();
    t_taken = tasks.get();
    int status = 0;
    try {
      status = function(a, b, c, d, e, f);
    } catch (...) {
      t_taken = nullptr;
      throw;
    }
    t_taken = nullptr;
    if (status != 0) return status;
    if (tasks->empty()) return anyxpu::sycl_driver::kNothingTaken;
    if (run_now(queue, *tasks, operations)) return 0;
    if (anyxpu::sycl_driver::host_call(queue, run_and_free, tasks.get()) != AX_OK)
      throw std::runtime_error(anyxpu::sycl_driver::last_error());
    (void)tasks.release();
    return 0;
  });
}
