// Linear layers, and linear layers fused with the activation before them.
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/int8_linear.h"
#include "engine/ops/products/linear_products.h"
#include "engine/ops/products/quantized.h"

namespace tessera {
namespace {

// A product with codes is computed in the dtype of the rows.
ops::LinearShape quantized_shape(const char* op, const Tensor& x, const Tensor& weight,
                                 const Tensor& bias, WeightLayout layout) {
  ops::require_same_device(op, x, weight, bias);
  TESSERA_REQUIRE(
      x.dimensions() >= 1 && x.dtype() != float64,
      "{}: x of shape {} and {}; a quantised weight is multiplied in fp32, bf16 or fp16", op,
      x.shape().to_string(), name_of(x.dtype()));
  const std::int64_t in = x.size(-1);
  const std::int64_t out = ops::outputs_of_quantized(weight, in, layout);
  TESSERA_REQUIRE(!bias.defined() || (bias.elements() == out && bias.dtype() == x.dtype()),
                  "{}: bias of shape {} and dtype {} for {} outputs of {}", op,
                  bias.shape().to_string(), name_of(bias.dtype()), out, name_of(x.dtype()));
  return {x.elements() / in, in, out, layout == WeightLayout::out_in, x.dtype()};
}

ops::LinearShape linear_shape(const char* op, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, WeightLayout layout) {
  if (is_quantized_weight(weight)) return quantized_shape(op, x, weight, bias, layout);
  TESSERA_REQUIRE(
      weight.dimensions() == 2 && x.dimensions() >= 1,
      "{}: x of shape {} and weight of shape {}; the weight must be a matrix and x have "
      "a last dimension of features",
      op, x.shape().to_string(), weight.shape().to_string());
  ops::require_same_device(op, x, weight, bias);
  const bool transposed = layout == WeightLayout::out_in;
  const std::int64_t in = weight.size(transposed ? 1 : 0);
  const std::int64_t out = weight.size(transposed ? 0 : 1);
  TESSERA_REQUIRE(x.size(-1) == in, "{}: x has {} features, the weight of shape {} takes {}", op,
                  x.size(-1), weight.shape().to_string(), in);
  TESSERA_REQUIRE(!bias.defined() || (bias.elements() == out && bias.dtype() == weight.dtype()),
                  "{}: bias of shape {} and dtype {} for {} outputs of {}", op,
                  bias.shape().to_string(), name_of(bias.dtype()), out, name_of(weight.dtype()));
  return {in == 0 ? 0 : x.elements() / in, in, out, transposed, weight.dtype()};
}

void bias_gradient(const ops::LinearShape& s, const Tensor& dout,
                   const autograd::GradientSink::Slot& db) {
  TESSERA_LAUNCH(dout.device(), sum_rows,
                 {dout.data(), db.tensor.raw_data(), s.rows, s.out, s.dtype, db.accumulate});
}

Shape with_last(const Shape& shape, std::int64_t last) {
  Shape result = shape;
  result[-1] = last;
  return result;
}

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias, WeightLayout layout) {
  if (is_int8_product(input, weight)) return int8_linear(input, weight, bias);
  const bool is_floating_weight = !is_quantized_weight(weight);
  ops::require_floating("linear", input, is_floating_weight ? weight : input);
  const Tensor& of_dtype = is_floating_weight ? weight : bias.defined() ? bias : input;
  const Tensor x = cast(input, of_dtype.dtype());
  const ops::LinearShape s = linear_shape("linear", x, weight, bias, layout);
  Tensor out;
  autograd::compute_or_take(Op::linear, {&out}, [&] {
    out = Tensor::empty(with_last(x.shape(), s.out), s.dtype, x.device());
    if (autograd::value_is_needed()) ops::linear_product(s, x, weight, bias, out);
  });
  // Only the weight's gradient needs x.
  const autograd::SavedTensor saved(weight.requires_grad() ? x : Tensor{});
  const autograd::SavedValue saved_weight(weight);
  autograd::record(
      Op::linear, {x, weight, bias}, {out},
      [=](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        if (sink.wants(1)) ops::linear_weight_gradient(s, saved.get(), dout[0], sink.wide_slot(1));
        if (sink.wants(2)) bias_gradient(s, dout[0], sink.slot(2));
        if (sink.wants(0)) ops::linear_input_gradient(s, dout[0], saved_weight.get(), sink.slot(0));
      },
      autograd::Reads::inputs);
  return out;
}

Tensor bias_gelu_linear(const Tensor& x, const Tensor& bias_in, const Tensor& weight,
                        const Tensor& bias, WeightLayout layout, bool exact) {
  if (is_int8_product(x, weight)) {
    return int8_linear(gelu(bias_in.defined() ? x + bias_in : x, exact), weight, bias);
  }
  ops::require_floating("bias_gelu_linear", x, is_quantized_weight(weight) ? x : weight);
  const ops::LinearShape s = linear_shape("bias_gelu_linear", x, weight, bias, layout);
  TESSERA_REQUIRE(x.dtype() == s.dtype, "bias_gelu_linear: x of {} and weight of {}",
                  name_of(x.dtype()), name_of(s.dtype));
  ops::require_same_device("bias_gelu_linear", x, bias_in);
  const auto bias_data = [](const Tensor& tensor) {
    return tensor.defined() ? tensor.data() : nullptr;
  };
  Tensor out = Tensor::empty(with_last(x.shape(), s.out), s.dtype, x.device());
  if (autograd::value_is_needed()) {
    const Tensor activated = Tensor::empty(x.shape(), s.dtype, x.device());
    TESSERA_LAUNCH(
        x.device(), bias_gelu,
        {x.data(), bias_data(bias_in), activated.raw_data(), s.rows, s.in, exact, s.dtype});
    ops::linear_product(s, activated, weight, bias, out);
  }
  autograd::record(
      Op::bias_gelu_linear, {x, bias_in, weight, bias}, {out},
      [s, exact, bias_data, saved = autograd::SavedValue(x),
       saved_bias = autograd::SavedValue(bias_in), saved_weight = autograd::SavedValue(weight)](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Tensor& in = saved.get();
        if (sink.wants(3)) bias_gradient(s, dout[0], sink.slot(3));
        Tensor dh = Tensor::empty(in.shape(), s.dtype, in.device());
        ops::linear_input_gradient(s, dout[0], saved_weight.get(), {dh, false});
        // Computes the activation again, over the pre-activation if no other tensor shares it.
        Tensor h;
        if (sink.wants(2)) {
          const bool in_place = autograd::sole_owner(in) && !autograd::keeps_graph();
          h = in_place ? in : Tensor::empty(in.shape(), s.dtype, in.device());
        }
        TESSERA_LAUNCH(in.device(), bias_gelu_backward,
                       {dh.data(), in.data(), bias_data(saved_bias.get()), dh.data(),
                        h ? h.data() : nullptr, s.rows, s.in, exact, s.dtype});
        if (sink.wants(2)) ops::linear_weight_gradient(s, h, dout[0], sink.wide_slot(2));
        if (sink.wants(1)) {
          const auto [db, accumulate] = sink.slot(1);
          TESSERA_LAUNCH(dh.device(), sum_rows,
                         {dh.data(), db.raw_data(), s.rows, s.in, s.dtype, accumulate});
        }
        sink.add(0, dh);
      },
      autograd::Reads::inputs);
  return out;
}

Tensor swiglu_linear(const Tensor& gate, const Tensor& up, const Tensor& weight,
                     WeightLayout layout) {
  if (is_int8_product(gate, weight)) return int8_linear(silu(gate) * up, weight, {});
  ops::require_floating("swiglu_linear", gate, up, is_quantized_weight(weight) ? gate : weight);
  const ops::LinearShape s = linear_shape("swiglu_linear", gate, weight, {}, layout);
  TESSERA_REQUIRE(gate.shape() == up.shape() && gate.dtype() == s.dtype && up.dtype() == s.dtype,
                  "swiglu_linear: gate {} {}, up {} {}, weight {}", name_of(gate.dtype()),
                  gate.shape().to_string(), name_of(up.dtype()), up.shape().to_string(),
                  name_of(s.dtype));
  ops::require_same_device("swiglu_linear", gate, up);
  Tensor out = Tensor::empty(with_last(gate.shape(), s.out), s.dtype, gate.device());
  if (autograd::value_is_needed()) {
    const Tensor activated = Tensor::empty(gate.shape(), s.dtype, gate.device());
    TESSERA_LAUNCH(
        gate.device(), swiglu,
        {gate.data(), up.data(), activated.raw_data(), s.rows, s.in, s.in, s.in, s.dtype});
    ops::linear_product(s, activated, weight, {}, out);
  }
  autograd::record(
      Op::swiglu_linear, {gate, up, weight}, {out},
      [s, saved_gate = autograd::SavedValue(gate), saved_up = autograd::SavedValue(up),
       saved_weight = autograd::SavedValue(weight)](std::vector<Tensor>& dout,
                                                    autograd::GradientSink& sink) {
        const Tensor& g = saved_gate.get();
        const auto like_gate = [&] { return Tensor::empty(g.shape(), s.dtype, g.device()); };
        Tensor dh = like_gate();
        ops::linear_input_gradient(s, dout[0], saved_weight.get(), {dh, false});
        Tensor dgate = like_gate();
        Tensor dup = like_gate();
        Tensor h = sink.wants(2) ? like_gate() : Tensor{};
        TESSERA_LAUNCH(g.device(), swiglu_backward,
                       {dh.data(), g.data(), saved_up.get().data(), dgate.data(), dup.data(),
                        h ? h.data() : nullptr, s.rows, s.in, s.in, s.in, s.dtype});
        if (sink.wants(2)) ops::linear_weight_gradient(s, h, dout[0], sink.wide_slot(2));
        sink.add(0, dgate);
        sink.add(1, dup);
      },
      autograd::Reads::inputs);
  return out;
}

}  // namespace tessera
