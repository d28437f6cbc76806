#include "crew.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace anyxpu::sycl_driver {
namespace {

// Programs launch a kernel every few microseconds, or then none for long. Waking a thread takes some 50 of them; for so
// long one that has nothing to do looks out for more before it sleeps.
constexpr auto kLookOut = std::chrono::microseconds(50);
constexpr int kLooks = 64;       // before the clock is asked, and whoever else wants the core has it
constexpr uint64_t kPieces = 8;  // of a thread's share: what is left of it others may take

void pause_a_little() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A thread that is woken is put on the core of the one that wakes it, and waits there while that one works: of few
// cores, the system sees it only after milliseconds.
constexpr int kFewCores = 8;

cpu_set_t allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) CPU_SET(0, &allowed);
  return allowed;
}

// Of one thread: what of its share is still to be done, and the job that it was called to last. A cache line each, as
// every thread writes its own.
struct alignas(64) Member {
  std::atomic<uint64_t> next{0};
  uint64_t begin = 0, end = 0;
  alignas(64) std::atomic<uint64_t> called{0};
  pthread_t thread{};
  int avoids = -1;  // the core that it keeps off
};

class Threads {
 public:
  explicit Threads(const cpu_set_t& cores)
      : cores_(cores), members_(std::make_unique<Member[]>(static_cast<size_t>(std::max(CPU_COUNT(&cores), 1)))) {
    try {
      for (; static_cast<int>(most_) < CPU_COUNT(&cores); ++most_) {
        std::thread thread([this, m = most_] { work(m); });
        members_[most_].thread = thread.native_handle();
        thread.detach();
      }
    } catch (const std::system_error&) {  // the system gives no more threads: those that there are do the work
    }
  }

  bool run(uint64_t count, uint64_t wanted, Crew::Part part, void* job) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    sharing_ = static_cast<unsigned>(std::clamp<uint64_t>(std::min(count, wanted), 1, most_));
    for (unsigned m = 0; m < sharing_; ++m) {
      members_[m].begin = count * m / sharing_;
      members_[m].end = count * (m + 1) / sharing_;
      members_[m].next.store(members_[m].begin, std::memory_order_relaxed);
    }
    if (most_ <= kFewCores) keep_off(sched_getcpu());
    piece_ = std::max<uint64_t>(1, count / sharing_ / kPieces);
    part_ = part;
    job_ = job;
    backwards_ = !backwards_;
    const uint64_t number = state_.fetch_add(1) + 1;  // open
    for (unsigned m = 1; m < sharing_; ++m) {
      members_[m].called.store(number);
      members_[m].called.notify_one();
    }
    take(0);
    state_.fetch_add(1);  // closed: who comes now finds nothing
    while (inside_.load() != 0) pause_a_little();
    return true;
  }

 private:
  void keep_off(int core) {
    for (unsigned m = 1; m < sharing_; ++m) {
      if (core < 0 || members_[m].avoids == core || !CPU_ISSET(core, &cores_)) continue;
      cpu_set_t others = cores_;
      CPU_CLR(core, &others);
      pthread_setaffinity_np(members_[m].thread, sizeof(others), &others);
      members_[m].avoids = core;
    }
  }

  // Own pieces first, then those that the others have not begun.
  void take(unsigned me) {
    for (unsigned i = 0; i < sharing_; ++i) {
      Member& share = members_[(me + i) % sharing_];
      for (;;) {
        const uint64_t first = share.next.fetch_add(piece_, std::memory_order_relaxed);
        if (first >= share.end) break;
        const uint64_t last = std::min(first + piece_, share.end);
        if (backwards_) {
          part_(job_, share.begin + (share.end - last), share.begin + (share.end - first));
        } else {
          part_(job_, first, last);
        }
      }
    }
  }

  [[noreturn]] void work(unsigned me) {
    pthread_setname_np(pthread_self(), "anyxpu-crew");
    for (uint64_t seen = 0;;) {
      seen = wait_for_other_than(members_[me].called, seen);
      // Whoever closes a job looks at `inside_` after that: either it waits for this thread, or this sees it closed.
      inside_.fetch_add(1);
      if (state_.load() == seen) take(me);
      inside_.fetch_sub(1);
    }
  }

  static uint64_t wait_for_other_than(const std::atomic<uint64_t>& called, uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + kLookOut;
    do {
      for (int i = 0; i < kLooks; ++i) {
        if (const uint64_t now = called.load(); now != seen) return now;
        pause_a_little();
      }
      sched_yield();
    } while (std::chrono::steady_clock::now() < until);
    called.wait(seen);
    return called.load();
  }

  const cpu_set_t cores_;
  unsigned most_ = 1;  // the launching thread among them
  const std::unique_ptr<Member[]> members_;
  std::mutex mutex_;                            // of who has the crew
  alignas(64) std::atomic<uint64_t> state_{0};  // odd: there is a job
  alignas(64) std::atomic<unsigned> inside_{0};
  unsigned sharing_ = 1;  // of this job: the first so many members
  // Every other job is done from its end on: of what does not fit a cache, that begins with what is still there.
  bool backwards_ = false;
  uint64_t piece_ = 1;
  Crew::Part part_ = nullptr;
  void* job_ = nullptr;
};

// A piece of memory, in blocks that share no cache line with another thread's where it begins at one.
struct Memory {
  std::byte* to;
  const std::byte* from;  // null where it is set
  uint64_t bytes;
  uint8_t byte;
};
constexpr uint64_t kBlock = 8 << 10;
constexpr uint64_t kFew = 128 << 10;  // bytes that one thread moves before another would have come

void memory_part(void* job, uint64_t first, uint64_t last) {
  const Memory& memory = *static_cast<const Memory*>(job);
  const uint64_t begin = first * kBlock, bytes = std::min(last * kBlock, memory.bytes) - begin;
  if (memory.from == nullptr) {
    std::memset(memory.to + begin, memory.byte, bytes);
  } else {
    std::memcpy(memory.to + begin, memory.from + begin, bytes);
  }
}

bool together(Memory memory) {
  if (memory.bytes <= kFew) return false;
  const bool apart =
      memory.from == nullptr || memory.to + memory.bytes <= memory.from || memory.from + memory.bytes <= memory.to;
  return apart && Crew::run((memory.bytes + kBlock - 1) / kBlock, memory.bytes / (kFew / 2), memory_part, &memory);
}

}  // namespace

void Crew::move(void* to, const void* from, uint64_t bytes) {
  if (!together({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, 0}))
    std::memmove(to, from, bytes);
}

void Crew::set(void* to, uint8_t byte, uint64_t bytes) {
  if (!together({static_cast<std::byte*>(to), nullptr, bytes, byte})) std::memset(to, byte, bytes);
}

bool Crew::run(uint64_t count, uint64_t wanted, Part part, void* job) {
  static auto* threads = new Threads(allowed_cores());  // never freed: its threads never end
  return threads->run(count, wanted, part, job);
}

}  // namespace anyxpu::sycl_driver
