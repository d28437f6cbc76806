// An allocator for the tests: each allocation has pages of its own, and touching the page beside it ends the process.
// GUARD says which side is exact: "after" puts the allocation's end at the guard page, "before" its start. ALIGN is the
// alignment that an allocation at "after" keeps. Nothing is given back: a kernel may still be running when it is freed.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" void* guarded_malloc(size_t bytes, int, void*) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t room = (bytes + page - 1) / page * page;
  void* all = mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(all) + page;
  if (mprotect(first, room, PROT_READ | PROT_WRITE) != 0) return nullptr;
  // What a program reads without having written it should not look like a result.
  std::memset(first, 0xcd, room);
  if (std::strcmp(std::getenv("GUARD"), "before") == 0) return first;
  const size_t align = std::strtoul(std::getenv("ALIGN"), nullptr, 10);
  return first + (room - bytes) / align * align;
}

extern "C" void guarded_free(void*, size_t, int, void*) {}
