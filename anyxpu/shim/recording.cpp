#include "shim/recording.h"

#include <algorithm>
#include <cstring>

#include "shim/assertions.h"
#include "shim/primitives.h"
#include "shim/waiting.h"

namespace anyxpu {

constinit thread_local Recording* the_recording = nullptr;

void note_counted(OpCounter& counter, Way way) { the_recording->counts.emplace_back(&counter, way); }

namespace {

// The bytes that a tensor's elements reach over, from its first.
uint64_t reach(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return static_cast<uint64_t>(last + 1) * t.element_size();
}

}  // namespace

Recording::Recording(at::ArrayRef<const at::Tensor*> inputs, c10::DeviceIndex device, ax_queue* queue)
    : device_(device), queue_(queue), outer_(the_recording) {
  for (const at::Tensor* each : inputs) {
    const auto begin = reinterpret_cast<uintptr_t>(each->const_data_ptr());
    inputs_.push_back({begin, begin + reach(*each)});
  }
  the_recording = this;
}

Recording::~Recording() {
  the_recording = outer_;
  if (objects.empty()) return;
  const pybind11::gil_scoped_acquire gil;
  objects.clear();
}

void Recording::spoil(const char* why) noexcept {
  if (spoilt_ == nullptr) spoilt_ = why;
}

void Recording::keep(PyObject* object) { objects.push_back(pybind11::reinterpret_borrow<pybind11::object>(object)); }

bool Recording::mine(ax_queue* queue) {
  if (queue != queue_) spoil("another stream than the current one of the operands' device");
  return queue == queue_;
}

std::optional<Place> Recording::place(const void* address) const {
  if (address == nullptr) return Place{};
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto index = [](const auto& ranges, const auto& found) {
    return static_cast<uint32_t>(found - ranges.begin());
  };
  // Operands that share a storage lie to each other as they do in every call of this kind (replay.cpp's key).
  if (const auto exact = std::find_if(inputs_.begin(), inputs_.end(), [&](const Range& r) { return r.begin == at; });
      exact != inputs_.end())
    return Place{Place::input, index(inputs_, exact), 0};
  const auto within = [&](const Range& r) { return r.live && at >= r.begin && at < r.end; };
  using Ranges = std::pair<const std::vector<Range>*, Place::Kind>;
  for (const auto& [ranges, kind] : {Ranges{&taken_, Place::memory}, {&kept_, Place::kept}, {&inputs_, Place::input}}) {
    const auto found = std::find_if(ranges->begin(), ranges->end(), within);
    if (found != ranges->end()) return Place{kind, index(*ranges, found), static_cast<int64_t>(at - found->begin)};
  }
  return std::nullopt;
}

Place Recording::placed(const void* address) {
  const auto found = place(address);
  if (!found) spoil("an address that is no operand's and was not taken by the call");
  return found.value_or(Place{});
}

bool Recording::is_address(uint64_t value) const {
  return value >= 4096 && place(reinterpret_cast<const void*>(value)).has_value();
}

std::optional<uint32_t> Recording::memory_at(const void* begin) const {
  const auto found = std::find_if(taken_.begin(), taken_.end(), [&](const Range& r) {
    return r.live && r.begin == reinterpret_cast<uintptr_t>(begin);
  });
  if (found == taken_.end()) return std::nullopt;
  return static_cast<uint32_t>(found - taken_.begin());
}

std::vector<uint32_t> Recording::left() const {
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < taken_.size(); ++i)
    if (taken_[i].live) all.push_back(i);
  return all;
}

void Recording::allocated(const void* begin, size_t bytes, ax_queue* queue) {
  if (!mine(queue)) return;
  const auto at = reinterpret_cast<uintptr_t>(begin);
  steps.push_back({.kind = Step::allocate, .index = memories++, .amount = bytes});
  taken_.push_back({at, at + bytes});
}

void Recording::released(const void* begin) {
  const auto found = memory_at(begin);
  if (!found) return;  // from before the call
  taken_[*found].live = false;
  steps.push_back({.kind = Step::release, .index = *found});
}

void Recording::launched(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                         const ax_arg* args, uint32_t count, uint64_t operations, const void* const* only) {
  if (!mine(queue) || spoilt_ != nullptr) return;
  Step step{.kind = Step::launch, .amount = operations, .kernel = kernel};
  std::copy_n(groups, 3, step.groups.begin());
  std::copy_n(local, 3, step.local.begin());
  for (uint32_t i = 0; i < count; ++i) {
    const ax_arg& arg = args[i];
    Taken& taken = step.args.emplace_back(Taken{static_cast<ax_arg_kind>(arg.kind), arg.size, {}, {}});
    if (taken.kind == AX_ARG_POINTER) {
      void* address = nullptr;
      std::memcpy(&address, arg.value, sizeof(address));
      const auto found = place(address);
      taken.place = found                                  ? *found
                    : address == assertion_record(device_) ? Place{Place::assertions, 0, 0}
                                                           : placed(address);
    } else if (taken.kind == AX_ARG_VALUE) {
      const auto drawn = std::find_if(next_.begin(), next_.end(), [&](const auto& each) { return each.first == i; });
      if (drawn != next_.end()) {
        taken.drawn = drawn->second;
        continue;
      }
      taken.bytes.assign(static_cast<const char*>(arg.value), arg.size);
      uint64_t word = 0;
      if (arg.size == sizeof(word)) {
        std::memcpy(&word, arg.value, sizeof(word));
        if (is_address(word)) return spoil("an address that is handed over as a number");
      }
    }
  }
  next_.clear();
  if (only != nullptr) step.only = placed(*only);
  steps.push_back(std::move(step));
}

void Recording::copied(ax_queue* queue, const void* to, const void* from, uint64_t bytes) {
  if (!mine(queue)) return;
  steps.push_back({.kind = Step::copy, .amount = bytes, .to = placed(to), .from = placed(from)});
}

void Recording::filled(ax_queue* queue, const void* to, const void* pattern, uint32_t bytes, uint64_t count) {
  if (!mine(queue)) return;
  Step step{.kind = Step::fill, .amount = count, .to = placed(to)};
  step.pattern.assign(static_cast<const char*>(pattern), bytes);
  steps.push_back(std::move(step));
}

void Recording::ran(ax_queue* queue, std::shared_ptr<Primitive> primitive, uintptr_t stream, bool taken,
                    at::ArrayRef<uintptr_t> addresses) {
  if (!mine(queue)) return;
  // The library's stream is known by the queue's address, which another queue of somebody else's may have later.
  if (!taken && !is_own_queue(queue)) return spoil("a queue of somebody else's");
  Step step{.kind = Step::primitive, .amount = primitive->operations};
  step.stream = stream;
  step.taken = taken;
  for (const uintptr_t address : addresses)
    step.args.push_back({AX_ARG_POINTER, sizeof(void*), placed(reinterpret_cast<const void*>(address)), {}});
  step.runs = std::move(primitive);
  steps.push_back(std::move(step));
}

uint32_t Recording::drew(uint64_t outputs) {
  steps.push_back({.kind = Step::draw, .index = draws, .amount = outputs});
  return draws++;
}

bool Recording::all_drawn_taken() const {
  for (uint32_t i = 0; i < draws; ++i)
    for (const auto part : {Drawn::seed, Drawn::offset}) {
      const auto takes = [&](const Taken& taken) { return taken.drawn == Drawn{part, i}; };
      const bool taken = std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
        return std::any_of(step.args.begin(), step.args.end(), takes);
      });
      if (!taken) return false;
    }
  return true;
}

void Recording::noted_written(const void* address) { steps.push_back({.kind = Step::written, .to = placed(address)}); }

void Recording::asked(const at::Tensor& tensor, uint64_t form, ax_queue* queue, const KeptCopy& answer) {
  if (!mine(queue)) return;
  const auto found = place(tensor.const_data_ptr());
  // The call's own memory is new each time, and so is the answer.
  if (found && found->kind == Place::memory && !answer.copy && !answer.wanted) return;
  if (!found || found->kind != Place::input || found->offset != 0) return spoil("a kept copy of what is no operand");
  const bool copied = static_cast<bool>(answer.copy);
  const auto begin = copied ? reinterpret_cast<uintptr_t>(answer.copy.data()) : 0;
  std::optional<uint32_t> shared;
  for (uint32_t i = 0; copied && !shared && i < kept_.size(); ++i)
    if (kept_[i].begin == begin) shared = i;
  questions.push_back({found->index, form, copied, answer.wanted, shared});
  kept_.push_back({begin, begin + (copied ? answer.copy.nbytes() : 0), copied});
}

}  // namespace anyxpu
