// What a call of an operator that is written in Python asks of the device, noted while it runs, so that the next call
// of the same kind does the same without Python (replay.cpp).
//
// Whatever reaches a device passes through the shim: memory through the allocator, launches, copies and fills through
// the driver's table, a library's primitives through primitives.cpp. Each tells the recording of its thread, if there
// is one. What depends on more than the operands' kinds and addresses (a wait, the host, a random number) spoils it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/driver.h"
#include "shim/kept_copies.h"
#include "shim/ops.h"

namespace anyxpu {

class Primitive;

// An address, said in a way that holds for other operands and other memory.
struct Place {
  enum Kind : uint8_t { nowhere, input, memory, kept, assertions } kind = nowhere;
  uint32_t index = 0;  // of the input, the memory that the call took, or the kept copy
  int64_t offset = 0;
  bool operator==(const Place&) const = default;
};

// A seed or an offset of the device's generator, each of which is another in every call.
struct Drawn {
  enum Part : uint8_t { seed, offset } part = seed;
  uint32_t index = 0;  // of the draw
  bool operator==(const Drawn&) const = default;
};

// One argument of a launch.
struct Taken {
  ax_arg_kind kind;
  uint32_t size;
  Place place;                   // of a pointer
  std::string bytes;             // of a value
  std::optional<Drawn> drawn{};  // that is drawn
  bool operator==(const Taken&) const = default;
};

struct Step {
  enum Kind : uint8_t { allocate, release, launch, copy, fill, primitive, written, draw } kind;
  uint32_t index = 0;   // allocate, release: which memory
  uint64_t amount = 0;  // bytes, elements of a fill, operations, or outputs of a draw
  ax_kernel* kernel = nullptr;
  std::array<uint32_t, 3> groups{}, local{};
  std::vector<Taken> args{};
  std::optional<Place> only{};  // a launch: where alone it writes
  Place to{}, from{};
  std::string pattern{};
  std::shared_ptr<Primitive> runs{};
  uintptr_t stream = 0;  // of a primitive: the library's
  bool taken = false;    // and whether its host tasks are
  bool operator==(const Step&) const = default;
};

// A question for a kept copy of an input, and its answer.
struct Asked {
  uint32_t input;
  uint64_t form;
  bool found, wanted;
  std::optional<uint32_t> shared{};  // the earlier question that the same copy answers: one made of several inputs
  bool operator==(const Asked&) const = default;
};

// How often something happened, which is part of what a call does.
class Tally {
 public:
  void reset() noexcept { count_.store(0, std::memory_order_relaxed); }
  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

class Recording {
 public:
  // Of the calling thread, until it is destroyed. `inputs` outlive it.
  Recording(at::ArrayRef<const at::Tensor*> inputs, c10::DeviceIndex device, ax_queue* queue);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void allocated(const void* begin, size_t bytes, ax_queue* queue);
  void released(const void* begin);
  // `only`: the one address that it writes at, as launch_writing has it.
  void launched(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                const ax_arg* args, uint32_t count, uint64_t operations, const void* const* only);
  void copied(ax_queue* queue, const void* to, const void* from, uint64_t bytes);
  void filled(ax_queue* queue, const void* to, const void* pattern, uint32_t bytes, uint64_t count);
  void ran(ax_queue* queue, std::shared_ptr<Primitive> primitive, uintptr_t stream, bool taken,
           at::ArrayRef<uintptr_t> addresses);
  void noted_written(const void* address);
  // The device's generator was asked for so many outputs. Returns the draw's number.
  uint32_t drew(uint64_t outputs);
  // Argument `index` of the next launch is that part of a draw.
  void takes_drawn(uint32_t index, Drawn drawn) { next_.emplace_back(index, drawn); }
  void asked(const at::Tensor& tensor, uint64_t form, ax_queue* queue, const KeptCopy& answer);
  // The call cannot be repeated from what was noted. `why` is a literal.
  void spoil(const char* why) noexcept;
  // Nor this one, while its kernels are built; another may.
  void spoil_for_now(const char* why) noexcept {
    spoil(why);
    for_now = true;
  }
  // Kept as long as what is made of the recording.
  void keep(PyObject* object);

  const char* spoilt() const noexcept { return spoilt_; }
  // Whether every part of every draw went into a launch as it is.
  bool all_drawn_taken() const;
  // Where the memory is that begins there; nullopt where it is not the call's own, or was given back.
  std::optional<uint32_t> memory_at(const void* begin) const;
  // Memory that the call took and has not given back.
  std::vector<uint32_t> left() const;

  std::vector<Step> steps;
  std::vector<Asked> questions;
  std::vector<pybind11::object> objects;
  std::vector<std::shared_ptr<Tally>> tallies;
  std::vector<std::pair<OpCounter*, Way>> counts;
  uint32_t memories = 0, draws = 0;
  bool for_now = false;

 private:
  struct Range {
    uintptr_t begin, end;
    bool live = true;
  };
  std::optional<Place> place(const void* address) const;
  Place placed(const void* address);
  bool is_address(uint64_t value) const;
  bool mine(ax_queue* queue);

  std::vector<Range> inputs_, taken_, kept_;
  std::vector<std::pair<uint32_t, Drawn>> next_;
  const c10::DeviceIndex device_;
  ax_queue* const queue_;
  const char* spoilt_ = nullptr;
  Recording* const outer_;
};

// (seed, offset) of a draw, which launch.cpp knows again. With the GIL.
pybind11::tuple drawn_numbers(uint32_t draw, uint64_t seed, uint64_t offset);

inline void spoil_recording(const char* why) noexcept {
  if (C10_UNLIKELY(the_recording != nullptr)) the_recording->spoil(why);
}

}  // namespace anyxpu
