// torch.accelerator.Graph on xpu: refused in one clear error (docs/unsupported.md), as torch.xpu.XPUGraph is in
// runtime/graphs.py. Without a registration torch itself answers with a RuntimeError that does not say why.
#if __has_include(<ATen/core/GraphImplInterface.h>)  // from torch 2.12 on
#include <ATen/core/GraphImplInterface.h>
#include <c10/util/Exception.h>

#include <string>

namespace anyxpu {
namespace {

struct RefusedGraph final : at::GraphImplInterface {
  explicit RefusedGraph(const at::GraphImplArgs&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "anyxpu does not capture graphs: torch.accelerator.Graph needs SYCL command graphs "
                                "over every kind of work a stream ",
                                "takes, and the CPU device's graphs refuse host tasks. Call the function directly, or "
                                "use torch.compile without ",
                                "mode='reduce-overhead'.");
  }
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {}
  void capture_end() override {}
  void instantiate() override {}
  void replay() override {}
  void reset() override {}
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}
};

// The macro names both without their namespace.
using at::GraphImplRegistry;
using at::RegistererGraphImplRegistry;
REGISTER_GRAPH_IMPL(XPU, RefusedGraph)

}  // namespace
}  // namespace anyxpu
#endif
