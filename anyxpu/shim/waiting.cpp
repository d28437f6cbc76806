#include "shim/waiting.h"

#include <pybind11/pybind11.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shim/gil.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

// Less is done in a fraction of a second: there a signal may wait, too.
constexpr uint64_t kLong = 500'000'000;
constexpr auto kSignals = std::chrono::milliseconds(50);  // how often signals are looked for
constexpr const char* kNote =
    "anyxpu: the wait for the device was left. What was launched goes on, since a kernel that runs cannot be stopped: "
    "the "
    "device is usable again when it has ended.";

// Operations enqueued since a queue was last waited for. Some queues share a place: handles come and go.
std::array<std::atomic<uint64_t>, 64>& enqueued() {
  static std::array<std::atomic<uint64_t>, 64> places{};
  return places;
}

std::atomic<uint64_t>& enqueued(ax_queue* queue) {
  return enqueued()[(reinterpret_cast<uintptr_t>(queue) >> 6) % enqueued().size()];
}

bool anything_long() {
  return std::any_of(enqueued().begin(), enqueued().end(),
                     [](const auto& place) { return place.load(std::memory_order_relaxed) >= kLong; });
}

struct Wait {
  std::function<ax_status()> work;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false, left = false;
  ax_status status = AX_OK;
  std::string said;  // the driver's message is its thread's own
};

// Waits that were left and whose work goes on. A driver's own clean-up would wait for it at the end of the process.
std::atomic<int> left_behind{0};

void end_without_clean_up(int status, void*) {
  if (left_behind.load() == 0) return;
  std::fputs("anyxpu: the program ends while the device still works on what was interrupted\n", stderr);
  std::fflush(nullptr);
  _exit(status);
}

// A thread that does one wait after the other. A wait that was left keeps its thread until the device is done.
class Waiter {
 public:
  static void start(std::shared_ptr<Wait> wait) {
    Waiter* waiter = nullptr;
    {
      std::lock_guard lock(pool().mutex);
      if (!pool().idle.empty()) {
        waiter = pool().idle.back();
        pool().idle.pop_back();
      }
    }
    if (waiter == nullptr) {
      waiter = new Waiter;  // never freed, as its thread never ends
      std::thread([waiter] { waiter->run(); }).detach();
    }
    std::lock_guard lock(waiter->mutex_);
    waiter->next_ = std::move(wait);
    waiter->changed_.notify_one();
  }

 private:
  struct Pool {
    std::mutex mutex;
    std::vector<Waiter*> idle;
  };

  static Pool& pool() {
    static auto* leaked = new Pool;
    return *leaked;
  }

  void run() {
    for (;;) {
      std::shared_ptr<Wait> wait;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return next_ != nullptr; });
        wait = std::move(next_);
        next_ = nullptr;
      }
      const ax_status status = wait->work();
      std::string said = status == AX_OK ? "" : driver().last_error();
      {
        // Idle before the end is told: the next wait often follows at once.
        std::lock_guard lock(pool().mutex);
        pool().idle.push_back(this);
      }
      std::lock_guard lock(wait->mutex);
      wait->status = status;
      wait->said = std::move(said);
      wait->done = true;
      if (wait->left) left_behind.fetch_sub(1);
      wait->changed.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Wait> next_;
};

bool in_pythons_main_thread() { return gettid() == getpid() && Py_IsInitialized(); }

// Runs the handlers of signals that have come; throws what one of them raises.
void look_for_signals(Wait& wait) {
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  py::error_already_set raised;
  if (py::hasattr(raised.value(), "add_note")) raised.value().attr("add_note")(kNote);
  {
    std::lock_guard lock(wait.mutex);
    if (!wait.done) {
      wait.left = true;
      if (left_behind.fetch_add(1) == 0) on_exit(end_without_clean_up, nullptr);
    }
  }
  throw raised;
}

void wait_in_another_thread(std::function<ax_status()> work, const char* what) {
  GilReleased no_gil;
  auto wait = std::make_shared<Wait>();
  wait->work = std::move(work);
  Waiter::start(wait);
  std::unique_lock lock(wait->mutex);
  while (!wait->changed.wait_for(lock, kSignals, [&] { return wait->done; })) {
    lock.unlock();
    look_for_signals(*wait);
    lock.lock();
  }
  check(wait->status, what, wait->said.c_str());
}

}  // namespace

void wait_for_queue(ax_queue* queue, const char* what, Storages touched) {
  auto& operations = enqueued(queue);
  if (operations.load(std::memory_order_relaxed) < kLong || !in_pythons_main_thread()) {
    check(driver().queue_synchronize(queue), what);
  } else {
    wait_in_another_thread([queue, touched = std::move(touched)] { return driver().queue_synchronize(queue); }, what);
  }
  operations.store(0, std::memory_order_relaxed);
}

void wait_for_event(ax_event* event, const char* what) {
  if (!anything_long() || !in_pythons_main_thread()) return check(driver().event_synchronize(event), what);
  wait_in_another_thread([event] { return driver().event_synchronize(event); }, what);
}

void note_work(ax_queue* queue, uint64_t operations) {
  enqueued(queue).fetch_add(operations == 0 ? kLong : operations, std::memory_order_relaxed);
}

void note_dependence(ax_queue* queue) {
  if (anything_long()) note_work(queue, 0);
}

}  // namespace anyxpu
