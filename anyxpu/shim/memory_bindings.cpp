// Python's face of device and pinned memory: the functions behind torch._C._xpu_*, under their names there.
#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include "shim/bindings.h"
#include "shim/caching_allocator.h"
#include "shim/memory_pool.h"
#include "shim/pinned.h"
#include "shim/pluggable_allocator.h"
#include "shim/runtime.h"

namespace torch {
// libtorch_python exports it; its header wants nlohmann/json.hpp, which torch's wheels for the CPU leave out.
std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& stacks);
}  // namespace torch

namespace anyxpu {
namespace {

namespace py = pybind11;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using Optional = std::optional<std::string>;

// Entry of the tables below: a word of the Python interface and what it stands for.
template <typename Value>
struct Word {
  const char* word;
  Value value;
};

constexpr Word<TraceAction> kActions[] = {
    {"alloc", TraceAction::kAlloc},
    {"free_requested", TraceAction::kFreeRequested},
    {"free_completed", TraceAction::kFreeCompleted},
    {"segment_alloc", TraceAction::kSegmentAlloc},
    {"segment_free", TraceAction::kSegmentFree},
    {"snapshot", TraceAction::kSnapshot},
    {"oom", TraceAction::kOutOfMemory},
};
// Words of the interface for what this allocator never does: it maps no memory.
constexpr const char* kActionsThatNeverHappen[] = {"segment_map", "segment_unmap"};
constexpr Word<StackLevel> kLevels[] = {
    {"state", StackLevel::kLive}, {"alloc", StackLevel::kAlloc}, {"all", StackLevel::kAll}};

constexpr Word<StatArray Stats::*> kStatArrays[] = {
    {"allocation", &Stats::allocation},
    {"segment", &Stats::segment},
    {"active", &Stats::active},
    {"inactive_split", &Stats::inactive_split},
    {"allocated_bytes", &Stats::allocated_bytes},
    {"reserved_bytes", &Stats::reserved_bytes},
    {"active_bytes", &Stats::active_bytes},
    {"inactive_split_bytes", &Stats::inactive_split_bytes},
    {"requested_bytes", &Stats::requested_bytes},
};
constexpr Word<int64_t Stats::*> kStatCounters[] = {
    {"num_alloc_retries", &Stats::num_alloc_retries},       {"num_ooms", &Stats::num_ooms},
    {"num_sync_all_streams", &Stats::num_sync_all_streams}, {"num_device_alloc", &Stats::num_device_alloc},
    {"num_device_free", &Stats::num_device_free},           {"max_split_size", &Stats::max_split_size},
};

py::dict stat_dict(const Stat& stat) {
  py::dict d;
  d["current"] = stat.current;
  d["peak"] = stat.peak;
  d["allocated"] = stat.allocated;
  d["freed"] = stat.freed;
  return d;
}

py::dict memory_stats(c10::DeviceIndex device) {
  constexpr const char* kPools[] = {"all", "small_pool", "large_pool"};
  Stats stats = xpu_allocator()->getDeviceStats(device);
  py::dict d;
  for (auto& [name, member] : kStatArrays) {
    py::dict pools;
    for (size_t i = 0; i < std::size(kPools); i++) pools[kPools[i]] = stat_dict((stats.*member)[i]);
    d[name] = pools;
  }
  for (auto& [name, member] : kStatCounters) d[name] = stats.*member;
  d["oversize_allocations"] = stat_dict(stats.oversize_allocations);
  d["oversize_segments"] = stat_dict(stats.oversize_segments);
  return d;
}

// Collects stacks while the snapshot is built, and names their frames all at once: frames repeat a lot.
class Stacks {
 public:
  void put(py::dict& entry, const Stack& stack) {
    entry["frames"] = py::list();
    if (!stack) return;
    stacks_.push_back(torch::getCapturedTracebackFromContext(stack));
    owners_.push_back(stack);
    entries_.push_back(entry);
  }
  void resolve() {
    auto frames = torch::py_symbolize(stacks_);
    for (size_t i = 0; i < entries_.size(); i++) entries_[i]["frames"] = frames.at(i);
  }

 private:
  std::vector<torch::CapturedTraceback*> stacks_;
  std::vector<Stack> owners_;
  std::vector<py::dict> entries_;
};

const char* state_of(const BlockRecord& block) {
  if (block.allocated) return "active_allocated";
  return block.active ? "active_pending_free" : "inactive";
}

py::dict segment_dict(const SegmentRecord& segment, Stacks& stacks) {
  py::dict d;
  d["device"] = static_cast<int>(segment.device);
  d["address"] = segment.address;
  d["total_size"] = segment.bytes;
  d["allocated_size"] = segment.allocated;
  d["active_size"] = segment.active;
  d["requested_size"] = segment.requested;
  d["stream"] = reinterpret_cast<uintptr_t>(segment.queue);
  d["segment_type"] = segment.small ? "small" : "large";
  d["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
  d["is_expandable"] = false;
  stacks.put(d, segment.stack);
  py::list blocks;
  for (auto& block : segment.blocks) {
    py::dict b;
    b["address"] = block.address;
    b["size"] = block.bytes;
    b["requested_size"] = block.requested;
    b["state"] = state_of(block);
    stacks.put(b, block.stack);
    blocks.append(b);
  }
  d["blocks"] = blocks;
  return d;
}

py::dict trace_dict(const TraceEntry& entry, Stacks& stacks) {
  py::dict d;
  for (auto& [word, action] : kActions)
    if (action == entry.action) d["action"] = word;
  d[entry.action == TraceAction::kOutOfMemory ? "device_free" : "addr"] = entry.address;
  d["size"] = entry.bytes;
  d["stream"] = reinterpret_cast<uintptr_t>(entry.queue);
  d["time_us"] = entry.microseconds;
  d["pool_id"] = py::make_tuple(entry.pool.first, entry.pool.second);
  d["compile_context"] = "";
  d["user_metadata"] = "";
  stacks.put(d, entry.stack);
  return d;
}

py::dict memory_snapshot(const std::optional<py::sequence>& pool) {
  TORCH_CHECK_NOT_IMPLEMENTED(xpu_allocator() == &caching_allocator(),
                              "anyxpu: the current xpu allocator was supplied by the user "
                              "(change_current_allocator); it has no snapshot");
  std::optional<c10::MempoolId_t> only;
  if (pool) only = {(*pool)[0].cast<c10::CaptureId_t>(), (*pool)[1].cast<c10::CaptureId_t>()};
  if (only && only->first == 0 && only->second == 0) only.reset();
  Stacks stacks;
  py::list segments, traces;
  for (c10::DeviceIndex device = 0; device < device_count(); device++) {
    DeviceCache& cache = caching_allocator().cache(device);
    py::list entries;
    for (auto& segment : cache.segments(only)) segments.append(segment_dict(segment, stacks));
    for (auto& entry : cache.history()) entries.append(trace_dict(entry, stacks));
    traces.append(entries);
  }
  stacks.resolve();
  py::dict settings;
  settings["PYTORCH_ALLOC_CONF"] = c10::CachingAllocator::getAllocatorSettings();
  settings["expandable_segments"] = false;
  py::dict d;
  d["segments"] = segments;
  d["device_traces"] = traces;
  d["allocator_settings"] = settings;
  d["external_annotations"] = py::list();
  return d;
}

Stack python_stack() { return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false); }
Stack whole_stack() { return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true); }

template <typename Value, size_t n>
Value look_up(const Word<Value> (&table)[n], const std::string& word, const char* what) {
  std::string known;
  for (auto& entry : table) {
    if (word == entry.word) return entry.value;
    known += (known.empty() ? "'" : ", '") + std::string(entry.word) + "'";
  }
  TORCH_CHECK_VALUE(false, what, " is '", word, "'; expected one of ", known);
}

void record_memory_history(const Optional& enabled, const Optional& context, const std::string& stacks,
                           int64_t max_entries, bool clear_history, const std::vector<std::string>& skip_actions) {
  constexpr Word<bool> kKeepsEvents[] = {{"state", false}, {"all", true}};
  constexpr Word<Stack (*)()> kStacks[] = {{"python", python_stack}, {"all", whole_stack}};
  TORCH_CHECK_VALUE(max_entries >= 0, "max_entries is ", max_entries, "; expected at least 0");
  HistoryOptions options;
  options.enabled = enabled.has_value();
  bool keeps = enabled && look_up(kKeepsEvents, *enabled, "enabled");
  options.max_entries = keeps ? static_cast<size_t>(max_entries) : 0;
  options.level = context ? look_up(kLevels, *context, "context") : StackLevel::kNever;
  options.gather = look_up(kStacks, stacks, "stacks");
  for (auto& word : skip_actions) {
    auto never = [&](const char* known) { return word == known; };
    if (std::any_of(std::begin(kActionsThatNeverHappen), std::end(kActionsThatNeverHappen), never)) continue;
    options.skip.insert(look_up(kActions, word, "an entry of skip_actions"));
  }
  // Stacks are let go of while the allocator is locked, and gathering one takes the GIL: never both.
  py::gil_scoped_release no_gil;
  caching_allocator().configure_history(options, clear_history);
}

c10::DeviceIndex index(int64_t device) {
  TORCH_CHECK(device >= 0 && device < 128, "XPU error: invalid device ordinal ", device);
  return static_cast<c10::DeviceIndex>(device);
}

py::dict host_memory_stats() {
  at::HostStats stats = pinned_allocator()->get_stats();
  py::dict d;
  d["active_requests"] = stat_dict(stats.active_requests);
  d["active_bytes"] = stat_dict(stats.active_bytes);
  d["segment"] = stat_dict(stats.allocations);
  d["reserved_bytes"] = stat_dict(stats.allocated_bytes);
  return d;
}

using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;

void bind_figures(py::module_& m) {
  m.def("_xpu_emptyCache", wrap_pybind_function_no_gil([] { xpu_allocator()->emptyCache({0, 0}); }));
  m.def("_xpu_memoryStats", wrap_pybind_function([](int64_t device) { return memory_stats(index(device)); }));
  m.def("_xpu_resetAccumulatedMemoryStats",
        wrap_pybind_function_no_gil([](int64_t device) { xpu_allocator()->resetAccumulatedStats(index(device)); }));
  m.def("_xpu_resetPeakMemoryStats",
        wrap_pybind_function_no_gil([](int64_t device) { xpu_allocator()->resetPeakStats(index(device)); }));
  m.def("_xpu_getMemoryInfo",
        wrap_pybind_function_no_gil([](int64_t device) { return xpu_allocator()->getMemoryInfo(index(device)); }));
  m.def("_xpu_getMemoryFraction", wrap_pybind_function_no_gil([](int64_t device) {
          return caching_allocator().cache(index(device)).fraction();
        }));
  m.def("_xpu_setMemoryFraction", wrap_pybind_function_no_gil([](double fraction, int64_t device) {
          caching_allocator().cache(index(device)).set_fraction(fraction);
        }));
  m.def("_xpu_memorySnapshot", wrap_pybind_function(memory_snapshot));
  m.def("_xpu_recordMemoryHistory", wrap_pybind_function(record_memory_history));
  m.def("host_memory_stats", wrap_pybind_function(host_memory_stats));
  m.def("device_of", wrap_pybind_function([](uintptr_t address) {
          auto device = device_of(reinterpret_cast<const void*>(address));
          return device ? std::optional<int>(*device) : std::nullopt;
        }));
  m.def("record_stream", wrap_pybind_function_no_gil([](uintptr_t address, int64_t stream_id, int64_t device) {
          xpu_allocator()->record_stream(reinterpret_cast<const void*>(address), make_stream(stream_id, index(device)));
        }));
  m.def("record_pinned", wrap_pybind_function_no_gil([](uintptr_t address, int64_t stream_id, int64_t device) {
          return record_pinned(reinterpret_cast<const void*>(address), make_stream(stream_id, index(device)));
        }));
}

void bind_pools(py::module_& m) {
  py::class_<XpuAllocator, std::shared_ptr<XpuAllocator>>(m, "_xpu_XPUAllocator", "An allocator of xpu memory.");
  m.def("_xpu_getAllocator", wrap_pybind_function([] { return shared_allocator(); }));
  m.def("_xpu_changeCurrentAllocator",
        wrap_pybind_function([](std::shared_ptr<XpuAllocator> one) { change_allocator(std::move(one)); }));
  m.def("_xpu_customAllocator", wrap_pybind_function([](uintptr_t allocate, uintptr_t free) {
          return make_pluggable_allocator(reinterpret_cast<AllocateFunction*>(allocate),
                                          reinterpret_cast<FreeFunction*>(free));
        }));

  py::class_<MemoryPool, std::shared_ptr<MemoryPool>>(m, "_XPUMemPool", "Base of torch.xpu.MemPool.")
      .def(py::init(wrap_pybind_function([](std::shared_ptr<XpuAllocator> source, bool is_user_created, bool use_on_oom,
                                            bool no_split) {
             return std::make_shared<MemoryPool>(std::move(source), is_user_created, PoolRules{use_on_oom, no_split});
           })),
           py::arg("allocator") = py::none(), py::arg("is_user_created") = true, py::arg("use_on_oom") = false,
           py::arg("no_split") = false)
      .def_property_readonly("id", &MemoryPool::id)
      .def_property_readonly("allocator", &MemoryPool::source)
      .def("use_count", wrap_pybind_function([](MemoryPool& pool) { return pool.users(); }));
  using Id = c10::MempoolId_t;
  m.def("_xpu_beginAllocateToPool", wrap_pybind_function_no_gil([](int64_t device, Id id) {
          begin_allocate_to_pool(index(device), id, /*this_thread_only=*/false);
        }));
  m.def("_xpu_beginAllocateCurrentThreadToPool", wrap_pybind_function_no_gil([](int64_t device, Id id) {
          begin_allocate_to_pool(index(device), id, /*this_thread_only=*/true);
        }));
  m.def("_xpu_endAllocateToPool",
        wrap_pybind_function_no_gil([](int64_t device, Id id) { end_allocate_to_pool(index(device), id); }));
  m.def("_xpu_releasePool",
        wrap_pybind_function_no_gil([](int64_t device, Id id) { release_pool(index(device), id); }));
}

}  // namespace

void bind_memory(py::module_& m) {
  bind_figures(m);
  bind_pools(m);
}

}  // namespace anyxpu
