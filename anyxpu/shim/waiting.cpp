#include "shim/waiting.h"

#include <pybind11/pybind11.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "shim/commands.h"
#include "shim/event_pool.h"
#include "shim/gil.h"
#include "shim/recording.h"

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

// A thread more for what takes tenths of a millisecond or longer.
constexpr uint64_t kWorthHelp = 20'000'000;

// How far queues are behind: an event after every so many launches, of which only the youngest few may be outstanding.
constexpr uint32_t kMarkEvery = 256;
constexpr size_t kMarks = 4;

struct QueueRecord {
  ax_queue* queue;
  QueueRecord* next;
  std::atomic<uint64_t> enqueued{0};  // operations since the queue was last waited for
  std::atomic<uint32_t> launched{0};
  std::atomic<bool> ours{false};         // and so there as long as the process
  std::atomic<bool> helped{false};       // some thread is at it
  std::atomic<const void*> by{nullptr};  // the thread that launched last
  std::mutex mutex{};
  std::deque<std::shared_ptr<PooledEvent>> marks{};  // oldest first
};

// One record a queue, never freed: our own queues live as long as the process, and others' are few. No two share one: a
// wait for the first of them would say of the second that nothing long is enqueued there.
using Records = std::array<std::atomic<QueueRecord*>, 64>;

Records& records() {
  static auto* all = new Records{};
  return *all;
}

QueueRecord* find(QueueRecord* first, ax_queue* queue) {
  while (first != nullptr && first->queue != queue) first = first->next;
  return first;
}

QueueRecord& record_of(ax_queue* queue) {
  auto& head = records()[(reinterpret_cast<uintptr_t>(queue) >> 6) % std::tuple_size_v<Records>];
  QueueRecord* first = head.load(std::memory_order_acquire);
  if (QueueRecord* known = find(first, queue); C10_LIKELY(known != nullptr)) return *known;
  static auto* adding = new std::mutex;
  const std::lock_guard lock(*adding);
  first = head.load(std::memory_order_acquire);
  if (QueueRecord* known = find(first, queue)) return *known;
  auto* record = new QueueRecord{queue, first};
  head.store(record, std::memory_order_release);
  return *record;
}

bool anything_long() {
  for (const auto& head : records())
    for (const auto* record = head.load(std::memory_order_acquire); record != nullptr; record = record->next)
      if (record->enqueued.load(std::memory_order_relaxed) >= kLong) return true;
  return false;
}

void add_operations(QueueRecord& record, uint64_t operations) {
  record.enqueued.fetch_add(operations == 0 ? kLong : operations, std::memory_order_relaxed);
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

std::atomic<int> helping{0};

// A driver is not taken down around a thread that is in it. Whoever helps is done when the device is.
void wait_for_helpers() {
  while (helping.load() > 0 && left_behind.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A thread that helps with a queue while this one waits for an event: see ax_driver::queue_help.
class Help {
 public:
  explicit Help(QueueRecord& record) : record_(record) {
    uint64_t before = record.enqueued.load(std::memory_order_relaxed);
    if (before < kWorthHelp || !record.ours.load(std::memory_order_relaxed) ||
        driver().queue_query(record.queue) == AX_OK || record.helped.exchange(true))
      return;
    static const int registered = std::atexit(wait_for_helpers);
    (void)registered;
    helping.fetch_add(1);
    launched_ = record.launched.load(std::memory_order_relaxed);
    wait_ = std::make_shared<Wait>();
    wait_->work = [&record, before]() mutable {
      const ax_status status = driver().queue_help(record.queue);
      record.enqueued.compare_exchange_strong(before, 0, std::memory_order_relaxed);  // unless more came meanwhile
      record.helped.store(false);
      helping.fetch_sub(1);
      return status;
    };
    Waiter::start(wait_);
  }

  // What the other thread waited for is done: if nothing came after it, so is the queue.
  void end() {
    if (wait_ == nullptr || launched_ != record_.launched.load(std::memory_order_relaxed)) return;
    const GilReleased no_gil;
    std::unique_lock lock(wait_->mutex);
    wait_->changed.wait(lock, [this] { return wait_->done; });
  }

 private:
  QueueRecord& record_;
  uint32_t launched_ = 0;
  std::shared_ptr<Wait> wait_;
};

const void* this_thread() {
  static thread_local const char mark = 0;
  return &mark;
}

void keep_depth(QueueRecord& record, c10::DeviceIndex device) {
  constexpr const char* kWhat = "wait for a stream that is far behind";
  auto mark = std::make_shared<PooledEvent>(record.queue, device);
  std::shared_ptr<PooledEvent> oldest;
  {
    std::lock_guard lock(record.mutex);
    auto& marks = record.marks;
    while (!marks.empty() && marks.front()->query() == AX_OK) marks.pop_front();  // a queue is in order
    marks.push_back(std::move(mark));
    if (marks.size() <= kMarks) return;
    oldest = std::move(marks.front());
    marks.pop_front();
  }
  if (anything_long() && in_pythons_main_thread())
    return wait_in_another_thread([oldest] { return oldest->synchronize(); }, kWhat);
  const GilReleased no_gil;
  check(oldest->synchronize(), kWhat);
}

}  // namespace

void wait_for_queue(ax_queue* queue, c10::DeviceIndex device, const char* what, Storages touched) {
  spoil_recording("a wait for the device");
  const WatchedWait watched("xpuStreamSynchronize");
  QueueRecord& record = record_of(queue);
  const void* launcher = record.by.load(std::memory_order_relaxed);
  std::shared_ptr<PooledEvent> mark;
  const bool by_another = launcher != nullptr && launcher != this_thread();
  uint64_t waited_for = record.enqueued.load(std::memory_order_relaxed);
  // Where the launching threads did it all themselves, there is nothing to wait for.
  const bool idle = (by_another || waited_for >= kLong) && driver().queue_query(queue) == AX_OK;
  // A queue's own wait goes on while another thread gives it work; that for an event ends with what is there now.
  if (by_another && !idle) mark = std::make_shared<PooledEvent>(queue, device);
  auto work = [queue, mark, touched = std::move(touched)] {
    return mark != nullptr ? mark->synchronize() : driver().queue_synchronize(queue);
  };
  std::optional<Help> help;
  if (mark != nullptr) help.emplace(record);
  if (idle || waited_for < kLong || !in_pythons_main_thread())
    check(work(), what);
  else
    wait_in_another_thread(std::move(work), what);
  if (help) help->end();
  record.enqueued.compare_exchange_strong(waited_for, 0, std::memory_order_relaxed);  // unless more came meanwhile
}

void wait_for_event(ax_event* event, const char* what) {
  spoil_recording("a wait for the device");
  const WatchedWait watched("xpuEventSynchronize");
  std::vector<Help> helps;
  for (const auto& head : records())
    for (auto* record = head.load(std::memory_order_acquire); record != nullptr; record = record->next)
      if (record->enqueued.load(std::memory_order_relaxed) >= kWorthHelp) helps.emplace_back(*record);
  if (!anything_long() || !in_pythons_main_thread())
    check(driver().event_synchronize(event), what);
  else
    wait_in_another_thread([event] { return driver().event_synchronize(event); }, what);
}

void note_own_queue(ax_queue* queue) { record_of(queue).ours.store(true, std::memory_order_relaxed); }

bool is_own_queue(ax_queue* queue) { return record_of(queue).ours.load(std::memory_order_relaxed); }

void note_work(ax_queue* queue, c10::DeviceIndex device, uint64_t operations) {
  QueueRecord& record = record_of(queue);
  add_operations(record, operations);
  record.by.store(this_thread(), std::memory_order_relaxed);
  if (C10_UNLIKELY(record.launched.fetch_add(1, std::memory_order_relaxed) % kMarkEvery == kMarkEvery - 1))
    keep_depth(record, device);
}

void note_dependence(ax_queue* queue) {
  spoil_recording("a wait for another stream");
  if (anything_long()) add_operations(record_of(queue), 0);
}

}  // namespace anyxpu
