// xpu's half of torch.profiler: what the device did, handed to Kineto by its interface for profilers of other devices.
//
// A child profiler of Kineto is asked for a session each time that torch.profiler prepares to record. While the session
// runs, torch tells it which operator a thread is in (correlation ids), and commands.cpp notes what the device is asked
// to do. At the end each command becomes two activities, which share a number so that the trace draws an arrow from
// one to the other: the call that asked for it, on its thread, and the device's work, on its stream. Both are linked to
// the operator, by which torch adds up device times. Waits of the host's are calls alone.
#include <ATen/Context.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

// Kineto's headers write numbers by a library that torch keeps to itself.
#define FMT_HEADER_ONLY
#ifndef KINETO_NAMESPACE
#define KINETO_NAMESPACE libkineto
#endif
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include "shim/bindings.h"
#include "shim/commands.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

// Torch takes Kineto's device activities for CUDA's where it was not compiled for XPU, and numbers devices of one kind
// from 0: beside CUDA devices that are really there, xpu's are told from them by their numbers.
constexpr int32_t kBesideCuda = 64;

int32_t first_device() { return at::globalContext().hasCUDA() ? kBesideCuda : 0; }

// What streams of others are called, whose ids are addresses.
constexpr int32_t kFirstForeign = 1000;

// From the host's steady clock to the time since 1970, which Kineto counts in.
int64_t since_epoch() {
  using std::chrono::nanoseconds;
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  const auto system = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<nanoseconds>(system).count() -
         std::chrono::duration_cast<nanoseconds>(steady).count();
}

ActivityType type_of(CommandKind kind) {
  switch (kind) {
    case CommandKind::copy:
      return ActivityType::GPU_MEMCPY;
    case CommandKind::fill:
      return ActivityType::GPU_MEMSET;
    default:
      return ActivityType::CONCURRENT_KERNEL;
  }
}

const char* call_of(const Command& command) {
  switch (command.kind) {
    case CommandKind::kernel:
      return "xpuLaunchKernel";
    case CommandKind::copy:
      return "xpuMemcpyAsync";
    case CommandKind::fill:
      return "xpuMemsetAsync";
    case CommandKind::host_call:
      return "xpuLaunchHostFunc";
    case CommandKind::primitive:
      return "dnnl_primitive_execute";
    case CommandKind::wait:
      return command.name.c_str();
    default:
      return "host";
  }
}

std::string triple(const uint32_t size[3]) {
  return "[" + std::to_string(size[0]) + ", " + std::to_string(size[1]) + ", " + std::to_string(size[2]) + "]";
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> wanted)
      : wanted_(std::move(wanted)),
        first_device_(first_device()),
        buffer_(std::make_unique<libkineto::CpuTraceBuffer>()) {
    buffer_->span = libkineto::TraceSpan(0, 0, "xpu");
    buffer_->gpuOpCount = 0;
  }
  ~Session() override {
    if (status_ == libkineto::TraceStatus::RECORDING) watched_commands();
  }

  void start() override {
    since_epoch_ = since_epoch();
    try {
      watch_commands();
      status_ = libkineto::TraceStatus::RECORDING;
    } catch (const std::exception& error) {  // no device: the rest of the profile is none the worse for it
      errors_.emplace_back(error.what());
      status_ = libkineto::TraceStatus::ERROR;
    }
  }
  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    commands_ = watched_commands();
    // Clocks that are set meanwhile move by half of it.
    since_epoch_ = since_epoch_ / 2 + since_epoch() / 2;
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    process(logger, [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; });
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    process(logger, linked);
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (streams_.empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(info(streams_.begin()->first.first));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (const auto& [place, number] : streams_)
      infos.push_back({number, number, first_device_ + place.first, "stream " + std::to_string(number)});
    return infos;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override {
    correlated_ = true;
    push_asking(Asking::operation, id);
  }
  void popCorrelationId() override { pop_asking(Asking::operation); }
  void pushUserCorrelationId(uint64_t id) override { push_asking(Asking::annotation, id); }
  void popUserCorrelationId() override { pop_asking(Asking::annotation); }

 private:
  using Place = std::pair<c10::DeviceIndex, c10::StreamId>;

  libkineto::DeviceInfo info(c10::DeviceIndex device) const {
    const int32_t number = first_device_ + device;
    return {number, libkineto::kExceedMaxPid + number, libkineto::processName(libkineto::processId()),
            "XPU " + std::to_string(device)};
  }

  int32_t stream_number(const Command& command) {
    const auto [entry, fresh] = streams_.try_emplace({command.device, command.stream}, 0);
    if (fresh)
      entry->second =
          command.stream < kFirstForeign ? static_cast<int32_t>(command.stream) : kFirstForeign + foreign_++;
    return entry->second;
  }

  GenericTraceActivity& add(ActivityType type, const std::string& name, int32_t number, uint64_t begin, uint64_t end) {
    buffer_->emplace_activity(buffer_->span, type, name);
    GenericTraceActivity& made = *buffer_->activities.back();
    made.id = number;
    made.startTime = static_cast<int64_t>(begin) + since_epoch_;
    made.endTime = static_cast<int64_t>(end) + since_epoch_;
    return made;
  }

  void process(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked) {
    if (status_ != libkineto::TraceStatus::PROCESSING) return;
    std::map<Place, uint64_t> passed;  // a stream's time, as far as its commands are known
    for (Command& command : commands_) {
      const libkineto::ITraceActivity* const operation =
          command.operation == 0 ? nullptr : linked(static_cast<int32_t>(command.operation));
      // Beside the operators' own numbers, which count from 1.
      const int32_t number = ++calls_ | (1 << 30);
      if (wanted_.count(ActivityType::XPU_RUNTIME) != 0 && command.kind != CommandKind::host_operator)
        add_call(command, number, operation).log(logger);
      if (command.kind == CommandKind::wait) continue;
      if (wanted_.count(type_of(command.kind)) == 0 || command.end == 0) continue;
      // The clocks of host and device are matched for each command, to a microsecond: those of a stream do not overlap.
      uint64_t& time = passed[{command.device, command.stream}];
      const uint64_t late = command.begin < time ? time - command.begin : 0;
      command.begin += late;
      command.end += late;
      time = command.end;
      add_work(command, number, operation).log(logger);
      extend_annotation(command, linked);
    }
    for (const auto& [place, span] : annotations_) {
      GenericTraceActivity& made = add(ActivityType::GPU_USER_ANNOTATION, span.activity->name(),
                                       static_cast<int32_t>(std::get<2>(place)), span.begin, span.end);
      made.device = first_device_ + std::get<0>(place);
      made.resource = streams_.at({std::get<0>(place), std::get<1>(place)});
      made.log(logger);
    }
    name_devices(logger);
    buffer_->span.opCount = buffer_->gpuOpCount = static_cast<int>(buffer_->activities.size());
    status_ = libkineto::TraceStatus::READY;
  }

  GenericTraceActivity& add_call(const Command& command, int32_t number, const libkineto::ITraceActivity* operation) {
    GenericTraceActivity& made =
        add(ActivityType::XPU_RUNTIME, call_of(command), number, command.asked_from, command.asked_to);
    made.device = libkineto::processId();
    made.resource = made.threadId = command.thread;
    made.linked = operation;
    if (!correlated_) made.id = 0;  // it would be written as one of torch's own numbers, which are not wanted
    if (command.kind != CommandKind::wait) {
      made.flow.id = static_cast<uint32_t>(number);
      made.flow.type = libkineto::kLinkAsyncCpuGpu;
      made.flow.start = 1;
    }
    made.addMetadata("correlation", number);
    return made;
  }

  GenericTraceActivity& add_work(const Command& command, int32_t number, const libkineto::ITraceActivity* operation) {
    GenericTraceActivity& made = add(type_of(command.kind), command.name, number, command.begin, command.end);
    made.device = first_device_ + command.device;
    made.resource = stream_number(command);
    made.linked = operation;
    made.flow.id = static_cast<uint32_t>(number);
    made.flow.type = libkineto::kLinkAsyncCpuGpu;
    made.flow.start = 0;
    made.addMetadata("device", static_cast<int>(command.device));
    made.addMetadata("stream", made.resource);
    made.addMetadata("correlation", number);
    if (command.kind == CommandKind::kernel) {
      made.addMetadata("grid", triple(command.groups));
      made.addMetadata("block", triple(command.local));
    }
    if (command.bytes != 0) {
      made.addMetadata("bytes", command.bytes);
      if (command.end > command.begin)
        made.addMetadata("memory bandwidth (GB/s)",
                         static_cast<double>(command.bytes) / static_cast<double>(command.end - command.begin));
    }
    return made;
  }

  // Also where torch does not ask for it: until 2.14 it knew them for CUDA alone.
  void extend_annotation(const Command& command, const libkineto::getLinkedActivityCallback& linked) {
    if (command.annotation == 0) return;
    const auto* const activity = linked(static_cast<int32_t>(command.annotation));
    if (activity == nullptr) return;
    const auto [entry, fresh] = annotations_.try_emplace({command.device, command.stream, command.annotation},
                                                         Span{activity, command.begin, command.end});
    if (fresh) return;
    entry->second.begin = std::min(entry->second.begin, command.begin);
    entry->second.end = std::max(entry->second.end, command.end);
  }

  // Kineto asks a session for one device.
  void name_devices(libkineto::ActivityLogger& logger) const {
    std::set<c10::DeviceIndex> devices;
    for (const auto& [place, number] : streams_) devices.insert(place.first);
    if (!devices.empty()) devices.erase(devices.begin());
    for (const c10::DeviceIndex device : devices) logger.handleDeviceInfo(info(device), 0);
  }

  struct Span {
    const libkineto::ITraceActivity* activity;
    uint64_t begin, end;
  };

  const std::set<ActivityType> wanted_;
  const int32_t first_device_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::vector<Command> commands_;
  std::map<Place, int32_t> streams_;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, uint64_t>, Span> annotations_;
  std::vector<std::string> errors_;
  int64_t since_epoch_ = 0;
  int32_t calls_ = 0, foreign_ = 0;
  std::atomic<bool> correlated_{false};  // torch tells its operators' numbers
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "anyxpu";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                                              ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_USER_ANNOTATION,
                                              ActivityType::XPU_RUNTIME};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    // Without one of the device's own this is a profile of the host alone.
    for (const ActivityType type :
         {ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET, ActivityType::CONCURRENT_KERNEL})
      if (wanted.count(type) != 0) return std::make_unique<Session>(wanted);
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

}  // namespace

void bind_profiler(pybind11::module_& m) {
  m.def(
      "serve_profiler", [] { libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); }); },
      "Have Kineto, torch.profiler's recorder, ask for xpu's part of a profile. Call it once.");
  m.def("pause_profiler", &pause_commands, "Whether a profile that is running leaves out what the device does now.",
        pybind11::arg("pause"));
  m.attr("profiled_beside_cuda") = static_cast<int>(kBesideCuda);
}

}  // namespace anyxpu
