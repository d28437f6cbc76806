#include "shim/xccl.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/irange.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "shim/arguments.h"
#include "shim/bindings.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using at::Tensor;
using c10::IValue;
using c10d::Backend;
using c10d::ProcessGroup;
using c10d::ReduceOp;
using Future = c10::ivalue::Future;
using torch::jit::Stack;

// Several works as one.
class AllWorks final : public c10d::Work {
 public:
  explicit AllWorks(std::vector<c10::intrusive_ptr<c10d::Work>> works) : works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// Torch finds it where a group is asked what serves xpu. It moves nothing itself: collectives arrive at c10d's
// operators for xpu (collectives.cpp), which take the group or the communicator in it.
class ProcessGroupXCCL final : public Backend {
 public:
  ProcessGroupXCCL(int rank, int size, c10::intrusive_ptr<ProcessGroup> host, py::object communicator)
      : Backend(rank, size), host_(std::move(host)), communicator_(std::move(communicator)) {}

  ~ProcessGroupXCCL() override {
    if (Py_IsInitialized() == 0) {
      communicator_.release();  // with the interpreter
      return;
    }
    const py::gil_scoped_acquire gil;
    communicator_ = py::object();
  }

  const std::string getBackendName() const override { return "xccl"; }
  void setSequenceNumberForGroup() override { gloo()->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo()->getSequenceNumberForGroup(); }
  // Collectives go on one by one; whoever coalesces them gets one work for all.
  void startCoalescing() override {
    const std::lock_guard lock(mutex_);
    coalesced_.emplace();
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    const std::lock_guard lock(mutex_);
    auto works = std::exchange(coalesced_, std::nullopt).value_or(Works{});
    return c10::make_intrusive<AllWorks>(std::move(works));
  }
  void coalesce(const c10::intrusive_ptr<c10d::Work>& work) {
    const std::lock_guard lock(mutex_);
    if (coalesced_) coalesced_->push_back(work);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo()->setTimeout(timeout); }
  void abort() override { gloo()->abort(); }
  void shutdown() override {
    {
      const py::gil_scoped_acquire gil;
      communicator_.attr("close")();
    }
    gloo()->shutdown();
  }

  const c10::intrusive_ptr<ProcessGroup>& host() const { return host_; }
  const py::object& communicator() const { return communicator_; }  // a oneccl.Communicator

 private:
  c10::intrusive_ptr<Backend> gloo() const { return host_->getBackend(c10::DeviceType::CPU); }

  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  c10::intrusive_ptr<ProcessGroup> host_;
  py::object communicator_;
  std::mutex mutex_;
  std::optional<Works> coalesced_;  // since startCoalescing
};

// A collective that was enqueued on a stream. Who waits for it makes his own stream wait.
class StreamWork final : public c10d::Work {
 public:
  StreamWork(const c10::Stream& stream, std::vector<Tensor> outputs)
      : stream_(stream),
        event_(stream.device_type()),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::vector<c10::Device>{stream.device()})) {
    event_.record(stream_);
    const c10::StreamGuard guard(stream_);  // whose work the future's waiters wait for
    future_->markCompleted(IValue(outputs_));
  }

  bool isCompleted() override { return event_.query(); }
  bool isSuccess() const override { return event_.query(); }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    const c10::impl::VirtualGuardImpl device(stream_.device_type());
    event_.block(device.getStream(stream_.device()));
  }
  c10::intrusive_ptr<Future> getFuture() override { return future_; }
  std::vector<Tensor> result() override { return outputs_; }

 private:
  c10::Stream stream_;
  c10::Event event_;
  std::vector<Tensor> outputs_;
  c10::intrusive_ptr<Future> future_;
};

// The backend xccl of a group; null if it has another.
ProcessGroupXCCL* xccl_of(const c10::intrusive_ptr<ProcessGroup>& group) {
  try {
    return dynamic_cast<ProcessGroupXCCL*>(group->getBackend(c10::DeviceType::XPU).get());
  } catch (const std::exception&) {
    return nullptr;  // a group without a backend for xpu, whose own words come from the collective
  }
}

size_t index_of(const c10::FunctionSchema& schema, const std::string& argument) {
  const auto index = schema.argumentIndexWithName(argument);
  TORCH_INTERNAL_ASSERT(index.has_value());
  return static_cast<size_t>(*index);
}

// What a mean over `ranks` adds up of a tensor.
Tensor share(const Tensor& t, int64_t ranks) {
  TORCH_CHECK_NOT_IMPLEMENTED(t.is_floating_point() || t.is_complex(), "anyxpu: xccl makes no mean (ReduceOp.AVG) of ",
                              t.scalar_type(), "; reduce with ReduceOp.SUM and divide");
  return t.div(ranks);
}

// Turns a mean into a sum of shares. Tensors that the reduction overwrites are scaled in place, others in a copy.
void average_by_sum(const std::string& name, const c10::FunctionSchema& schema, const ProcessGroupXCCL& xccl,
                    Stack& arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t ranks = xccl.getSize();
  const bool reduce = name == "c10d::reduce_";
  const bool scatters = name.find("reduce_scatter") != std::string::npos;
  const bool overwritten = !scatters && (!reduce || arguments[index_of(schema, "root_rank")].toInt() == xccl.getRank());
  for (const auto i : c10::irange(arguments.size())) {
    const std::string& argument = schema.arguments()[i].name();
    if (scatters && argument.rfind("output", 0) == 0) continue;
    arguments[i] = map_tensors(arguments[i], [&](const Tensor& t) {
      if (!t.defined()) return t;
      const Tensor scaled = share(t, ranks);
      if (!overwritten) return scaled;
      Tensor target = t;
      target.copy_(scaled);
      return target;
    });
  }
}

}  // namespace

void coalesce(const IValue& group, const c10::intrusive_ptr<c10d::Work>& work) {
  if (ProcessGroupXCCL* xccl = xccl_of(group.toCustomClass<ProcessGroup>())) xccl->coalesce(work);
}

bool enqueue_between_gpus(const c10::FunctionSchema& schema, const Stack& arguments, Stack& results) {
  const auto group = arguments[index_of(schema, "process_group")].toCustomClass<ProcessGroup>();
  const ProcessGroupXCCL* xccl = xccl_of(group);
  if (xccl == nullptr) return false;
  int64_t reduction = -1;
  if (const auto op = schema.argumentIndexWithName("reduce_op")) {
    reduction = static_cast<int64_t>(arguments[*op].toCustomClass<ReduceOp>()->op_);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::optional<c10::Stream> stream;
  {
    const py::gil_scoped_acquire gil;
    py::dict named;
    for (const auto i : c10::irange(arguments.size()))
      if (!arguments[i].isCustomClass()) {
        named[py::str(schema.arguments()[i].name())] = torch::jit::toPyObject(arguments[i]);
      }
    const std::string name = schema.name().substr(schema.name().find(':') + 2);
    const py::object made = xccl->communicator().attr("collective")(name, reduction, named);
    if (made.is_none()) return false;
    stream = c10::Stream::unpack3(made.attr("stream_id").cast<c10::StreamId>(),
                                  made.attr("device_index").cast<c10::DeviceIndex>(),
                                  static_cast<c10::DeviceType>(made.attr("device_type").cast<int64_t>()));
  }
  std::vector<Tensor> outputs;  // the first argument, in all of them
  for_each_tensor(arguments[0], [&](const Tensor& t) { outputs.push_back(t); });
  const auto work = c10::make_intrusive<StreamWork>(*stream, std::move(outputs));
  for (const auto& result : schema.returns()) {
    results.push_back(result.type()->kind() == c10::TypeKind::ClassType ? IValue(c10::intrusive_ptr<c10d::Work>(work))
                                                                        : arguments[0]);
  }
  return true;
}

bool for_host_group(const std::string& name, const c10::FunctionSchema& schema, Stack& arguments) {
  const size_t place = index_of(schema, "process_group");
  const auto group = arguments[place].toCustomClass<ProcessGroup>();
  const ProcessGroupXCCL* xccl = xccl_of(group);
  if (xccl == nullptr) return false;
  if (const auto op = schema.argumentIndexWithName("reduce_op")) {
    if (*arguments[*op].toCustomClass<ReduceOp>() == ReduceOp::AVG) {
      average_by_sum(name, schema, *xccl, arguments);
      arguments[*op] = IValue(c10::make_intrusive<ReduceOp>(ReduceOp::SUM));
    }
  }
  arguments[place] = IValue(xccl->host());
  return true;
}

void all_to_all(Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto timeout = torch::jit::pop(*stack).toInt();
  const auto async = torch::jit::pop(*stack).toBool();
  const IValue group = torch::jit::pop(*stack);
  const auto sent = torch::jit::pop(*stack).toTensorVector();
  const auto received = torch::jit::pop(*stack).toTensorVector();
  TORCH_CHECK_VALUE(!sent.empty() && sent.size() == received.size(), "all_to_all: expected as many tensors to send as ",
                    "to receive, one for each rank, and got ", sent.size(), " and ", received.size());
  std::vector<Tensor> flat;
  std::vector<int64_t> out, in;
  int64_t total = 0;
  for (const Tensor& t : sent) {
    flat.push_back(t.reshape({-1}));
    in.push_back(t.numel());
  }
  for (const Tensor& t : received) {
    TORCH_CHECK_TYPE(t.scalar_type() == sent[0].scalar_type(),
                     "all_to_all: all tensors must have one type, and there are ", sent[0].scalar_type(), " and ",
                     t.scalar_type());
    out.push_back(t.numel());
    total += t.numel();
  }
  const Tensor input = at::cat(flat);
  const Tensor output = at::empty({total}, received[0].options());
  static const auto base = c10::Dispatcher::singleton().findSchemaOrThrow("c10d::alltoall_base_", "");
  Stack arguments{output, input, group, out, in, async, timeout};
  base.callBoxed(&arguments);
  const IValue work = arguments[0];
  work.toCustomClass<c10d::Work>()->wait();
  int64_t from = 0;
  for (const Tensor& t : received) {
    t.copy_(output.narrow(0, from, t.numel()).view(t.sizes()));
    from += t.numel();
  }
  stack->push_back(IValue(received));
  stack->push_back(work);
}

void bind_distributed(py::module_& m) {
  m.def(
      "xccl",
      [](int rank, int size, const c10::intrusive_ptr<ProcessGroup>& host,
         py::object communicator) -> c10::intrusive_ptr<Backend> {
        return c10::make_intrusive<ProcessGroupXCCL>(rank, size, host, std::move(communicator));
      },
      py::arg("rank"), py::arg("size"), py::arg("host"), py::arg("communicator"),
      "A backend named xccl. Collectives on xpu tensors that `communicator` (a oneccl.Communicator) does not take go "
      "through the process group `host` as CPU tensors.");
}

}  // namespace anyxpu
