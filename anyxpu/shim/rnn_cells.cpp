// The fused recurrent cells that torch calls on every accelerator and that have no CPU kernel: composed of operators
// that each find their own way. Gate order and workspaces are torch's own.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "shim/ops.h"

namespace anyxpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor bias_gradient(const Tensor& gates, bool has_bias) { return has_bias ? gates.sum(0) : Tensor(); }

// d sigmoid and d tanh by their results.
Tensor through_sigmoid(const Tensor& gradient, const Tensor& y) { return at::sigmoid_backward(gradient, y); }
Tensor through_tanh(const Tensor& gradient, const Tensor& y) { return at::tanh_backward(gradient, y); }

// Gates (batch, 4 * hidden): input, forget, cell, output. The workspace holds them after their activations.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = with_bias(with_bias(input_gates + hidden_gates, input_bias), hidden_bias).chunk(4, 1);
  const auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const bool from_hy = grad_hy.has_value() && grad_hy->defined();
  const bool from_cy = grad_cy.has_value() && grad_cy->defined();
  if (!from_hy && !from_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto grad_h = from_hy ? *grad_hy : at::zeros_like(cy);
  const auto squashed = cy.tanh();
  auto grad_c = through_tanh(grad_h * out, squashed);
  if (from_cy) grad_c = grad_c + *grad_cy;
  const auto grad_gates = at::cat({through_sigmoid(grad_c * cell, in), through_sigmoid(grad_c * cx, forget),
                                   through_tanh(grad_c * in, cell), through_sigmoid(grad_h * squashed, out)},
                                  1);
  return {grad_gates, grad_c * forget, bias_gradient(grad_gates, has_bias)};
}

// Gates (batch, 3 * hidden): reset, update, new. The workspace holds them after their activations, the old state, and
// the hidden part of the new gate before it is reset.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (in[0] + hidden[0]).sigmoid(), update = (in[1] + hidden[1]).sigmoid();
  const auto fresh = (in[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden_new = saved[4];
  const auto grad_new = through_tanh(grad_hy * (1 - update), fresh);
  const auto grad_update = through_sigmoid(grad_hy * (hx - fresh), update);
  const auto grad_reset = through_sigmoid(grad_new * hidden_new, reset);
  const auto grad_input = at::cat({grad_reset, grad_update, grad_new}, 1);
  const auto grad_hidden = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, bias_gradient(grad_input, has_bias),
          bias_gradient(grad_hidden, has_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace anyxpu
