// A kernel on a CPU device that leaves memory ends the process by a signal; here it is said which one that was.
//
// Otherwise the last words are those of the compiler inside Intel's runtime, which asks for a report of its bug.
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "common.h"

namespace anyxpu::sycl_driver {
namespace {

// The kernels launched last. Whoever writes at the same time may lose a name, which costs less than a lock would.
constexpr uint32_t kRemembered = 4;
std::array<std::atomic<const char*>, kRemembered> g_launched{};
std::atomic<uint32_t> g_launches{0};

thread_local const char* t_running = nullptr;

// Several of the device's threads may leave memory at once: one of them says so, and the others let it finish, as
// whoever is asked next ends the process.
std::atomic_flag g_saying;
std::atomic<bool> g_said{false};

struct Previous {
  int signal;
  struct sigaction action;
};
std::array<Previous, 2> g_previous{{{SIGSEGV, {}}, {SIGBUS, {}}}};

// --- in the handler: nothing that allocates or locks ----------------------------------------------------------------
// Reads /proc/self/maps a character at a time.
class Maps {
 public:
  Maps() : file_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~Maps() {
    if (file_ >= 0) ::close(file_);
  }
  Maps(const Maps&) = delete;
  Maps& operator=(const Maps&) = delete;

  // The next line's range, and whether it names a file, a stack or the like; false at the end.
  bool next(uint64_t& begin, uint64_t& end, bool& named) {
    char behind = '\0';
    begin = number(behind);
    end = number(behind);
    named = false;
    for (; behind != '\n'; behind = get()) {
      if (behind == '\0') return false;
      named |= behind == '/' || behind == '[';
    }
    return true;
  }

 private:
  char get() {
    if (at_ == got_) {
      got_ = file_ >= 0 ? ::read(file_, buffer_.data(), buffer_.size()) : 0;
      at_ = 0;
      if (got_ <= 0) {
        got_ = 0;
        return '\0';
      }
    }
    return buffer_[static_cast<size_t>(at_++)];
  }

  // A hexadecimal number, and the character behind it.
  uint64_t number(char& behind) {
    uint64_t value = 0;
    for (;;) {
      behind = get();
      if (behind >= '0' && behind <= '9') {
        value = value * 16 + static_cast<uint64_t>(behind - '0');
      } else if (behind >= 'a' && behind <= 'f') {
        value = value * 16 + static_cast<uint64_t>(behind - 'a' + 10);
      } else {
        return value;
      }
    }
  }

  const int file_;
  std::array<char, 1024> buffer_;  // a signal's stack is small
  ssize_t at_ = 0, got_ = 0;
};

// Is the code at `address` of no file? Such is what Intel's runtime makes of kernels.
bool is_generated(uint64_t address) {
  Maps maps;
  uint64_t begin = 0, end = 0;
  bool named = false;
  while (maps.next(begin, end, named)) {
    if (address >= begin && address < end) return !named;
  }
  return false;
}

// A sentence, written at once so that no other thread's words come between.
class Sentence {
 public:
  void add(const char* text, size_t most = 1024) {
    for (size_t left = most; *text != '\0' && left > 0 && size_ < text_.size(); --left) text_[size_++] = *text++;
  }

  void add_name(const char* name) { add(name, 256); }

  void add_address(uint64_t address) {
    std::array<char, 19> digits{};
    size_t at = digits.size() - 1;
    do {
      digits[--at] = "0123456789abcdef"[address % 16];
      address /= 16;
    } while (address != 0);
    digits[--at] = 'x';
    digits[--at] = '0';
    add(digits.data() + at);
  }

  void say() const {
    for (size_t at = 0; at < size_;) {
      const ssize_t written = ::write(STDERR_FILENO, text_.data() + at, size_ - at);
      if (written <= 0) return;
      at += static_cast<size_t>(written);
    }
  }

 private:
  std::array<char, 2048> text_;  // a signal's stack is small
  size_t size_ = 0;
};

void add_which(Sentence& sentence) {
  if (t_running != nullptr) {
    sentence.add("It is `");
    sentence.add_name(t_running);
    sentence.add("`.");
    return;
  }
  sentence.add("It is one of those launched last (synchronize() behind each tells which), the newest first:");
  const uint32_t count = g_launches.load(std::memory_order_relaxed);
  for (uint32_t back = 1; back <= kRemembered && back <= count; ++back) {
    const char* name = g_launched[(count - back) % kRemembered].load(std::memory_order_relaxed);
    if (name == nullptr) continue;
    sentence.add(back == 1 ? " `" : ", `");
    sentence.add_name(name);
    sentence.add("`");
  }
  sentence.add(".");
}

void say_left(const siginfo_t& info) {
  Sentence sentence;
  sentence.add("\nanyxpu: a kernel on the xpu device left its memory (it read or wrote at ");
  // The processor does not tell an address that has more bits than there can be.
  if (info.si_code > 0 && info.si_code < SI_KERNEL) {
    sentence.add_address(reinterpret_cast<uintptr_t>(info.si_addr));
  } else {
    sentence.add("an address that cannot be");
  }
  sentence.add("), which ends the process. ");
  add_which(sentence);
  sentence.add(" Look at its pointers, strides and masks; what is said below of a bug in a compiler does not count.\n");
  sentence.say();
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto* machine = static_cast<const ucontext_t*>(context);
  if (is_generated(static_cast<uint64_t>(machine->uc_mcontext.gregs[REG_RIP])) && !g_saying.test_and_set()) {
    say_left(*info);
    g_said.store(true, std::memory_order_release);
  }
  const timespec millisecond{0, 1'000'000};
  while (g_saying.test() && !g_said.load(std::memory_order_acquire)) ::nanosleep(&millisecond, nullptr);
  // Whoever was asked before is asked again: the instruction comes once more.
  for (const Previous& previous : g_previous)
    if (previous.signal == signal) ::sigaction(signal, &previous.action, nullptr);
}

}  // namespace

const char* remembered_name(const std::string& symbol) {
  static std::mutex* mutex = new std::mutex;
  static auto* names = new std::unordered_set<std::string>;
  // What the compiler puts before a kernel's name is nobody's.
  constexpr std::string_view kPrefix = "kernel_";
  const size_t begin = symbol.compare(0, kPrefix.size(), kPrefix) == 0 ? kPrefix.size() : 0;
  std::lock_guard lock(*mutex);
  return names->insert(symbol.substr(begin)).first->c_str();
}

void note_launch(const char* name) noexcept {
  const uint32_t at = g_launches.load(std::memory_order_relaxed);
  g_launched[at % kRemembered].store(name, std::memory_order_relaxed);
  g_launches.store(at + 1, std::memory_order_relaxed);
}

RunningHere::RunningHere(const char* name) noexcept { t_running = name; }
RunningHere::~RunningHere() { t_running = nullptr; }

void watch_faults() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (Previous& previous : g_previous) ::sigaction(previous.signal, &action, &previous.action);
}

}  // namespace anyxpu::sycl_driver
