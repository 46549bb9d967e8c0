// Grouped products: those of linear layers, one for each group that has rows.
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/products/grouped.h"
#include "engine/ops/products/linear_products.h"

namespace tessera {
namespace {

using Weights = std::span<const Tensor>;

// The products of all groups; `each` has the sizes of one.
struct GroupedShape {
  ops::LinearShape each;
  std::vector<std::int64_t> starts;

  [[nodiscard]] std::size_t count() const { return starts.size() - 1; }
  [[nodiscard]] ops::LinearShape of(std::size_t group) const {
    ops::LinearShape shape = each;
    shape.first_row = starts[group];
    shape.rows = starts[group + 1] - starts[group];
    return shape;
  }
};

void require_floating_weights(const char* op, const Tensor& x, Weights weights) {
  ops::require_floating(op, x);
  for (const Tensor& weight : weights) ops::require_floating(op, x, weight);
}

GroupedShape grouped_shape(const char* op, const Tensor& x, Weights weights,
                           const RowGroups& groups) {
  TESSERA_REQUIRE(!weights.empty() && static_cast<std::int64_t>(weights.size()) == groups.count(),
                  "{}: {} weights for {} groups; one for each is required", op, weights.size(),
                  groups.count());
  for (const Tensor& weight : weights) {
    const Tensor& first = weights.front();
    TESSERA_REQUIRE(weight.dimensions() == 2 && weight.shape() == first.shape() &&
                        weight.dtype() == first.dtype(),
                    "{}: a weight of {} {} beside one of {} {}; all must be matrices of one shape "
                    "and dtype",
                    op, name_of(weight.dtype()), weight.shape().to_string(), name_of(first.dtype()),
                    first.shape().to_string());
    ops::require_same_device(op, x, weight);
  }
  const std::int64_t in = weights.front().size(1), out = weights.front().size(0);
  TESSERA_REQUIRE(x.dimensions() == 2 && x.size(0) == groups.rows() && x.size(1) == in,
                  "{}: x of shape {} for groups of {} rows and weights of shape {}; x must be "
                  "[{}, {}]",
                  op, x.shape().to_string(), groups.rows(), weights.front().shape().to_string(),
                  groups.rows(), in);
  return {{.rows = groups.rows(),
           .in = in,
           .out = out,
           .transposed = true,
           .dtype = weights.front().dtype()},
          groups.starts};
}

// Inputs of a node: these tensors, then the weights.
std::vector<Tensor> with_weights(std::initializer_list<Tensor> first, Weights weights) {
  std::vector<Tensor> inputs(first);
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  return inputs;
}

bool any_requires_grad(Weights weights) {
  for (const Tensor& weight : weights) {
    if (weight.requires_grad()) return true;
  }
  return false;
}

std::vector<autograd::SavedValue> saved_weights(Weights weights) {
  return {weights.begin(), weights.end()};
}

void multiply_groups(const GroupedShape& s, const Tensor& x, Weights weights, const Tensor& out) {
  for (std::size_t g = 0; g < s.count(); ++g) {
    const ops::LinearShape group = s.of(g);
    if (group.rows > 0) ops::linear_product(group, x, weights[g], {}, out);
  }
}

void group_input_gradients(const GroupedShape& s, const Tensor& dout,
                           const std::vector<autograd::SavedValue>& weights,
                           const autograd::GradientSink::Slot& dx) {
  for (std::size_t g = 0; g < s.count(); ++g) {
    const ops::LinearShape group = s.of(g);
    if (group.rows > 0) ops::linear_input_gradient(group, dout, weights[g].get(), dx);
  }
}

// The weights are the node's inputs from `first_input` on. An empty group has a gradient as well:
// which groups are empty differs from rank to rank, and all ranks reduce the same gradients.
void group_weight_gradients(const GroupedShape& s, const Tensor& x, const Tensor& dout,
                            autograd::GradientSink& sink, int first_input) {
  for (std::size_t g = 0; g < s.count(); ++g) {
    const int input = first_input + static_cast<int>(g);
    if (!sink.wants(input)) continue;
    const ops::LinearShape group = s.of(g);
    const autograd::GradientSink::Slot slot = sink.wide_slot(input);
    if (group.rows > 0) {
      ops::linear_weight_gradient(group, x, dout, slot);
    } else if (!slot.accumulate) {
      TESSERA_LAUNCH(slot.tensor.device(), fill,
                     {slot.tensor.raw_data(), slot.tensor.elements(), slot.tensor.dtype(), 0.0});
    }
  }
}

}  // namespace

Tensor grouped_linear(const Tensor& input, std::span<const Tensor> weights,
                      const RowGroups& groups) {
  require_floating_weights("grouped_linear", input, weights);
  const Tensor x = weights.empty() ? input : cast(input, weights.front().dtype());
  const GroupedShape s = grouped_shape("grouped_linear", x, weights, groups);
  Tensor out = Tensor::empty({groups.rows(), s.each.out}, s.each.dtype, x.device());
  if (autograd::value_is_needed()) multiply_groups(s, x, weights, out);
  // Only the weights' gradients need x.
  const autograd::SavedTensor saved(any_requires_grad(weights) ? x : Tensor{});
  autograd::record(
      Op::grouped_linear, with_weights({x}, weights), std::span<const Tensor>(&out, 1),
      [s, saved, kept = saved_weights(weights)](std::vector<Tensor>& dout,
                                                autograd::GradientSink& sink) {
        bool wants_weights = false;
        for (std::size_t g = 0; g < s.count(); ++g) {
          wants_weights = wants_weights || sink.wants(1 + static_cast<int>(g));
        }
        if (wants_weights) group_weight_gradients(s, saved.get(), dout[0], sink, 1);
        if (sink.wants(0)) group_input_gradients(s, dout[0], kept, sink.slot(0));
      },
      autograd::Reads::inputs);
  return out;
}

Tensor grouped_swiglu_linear(const Tensor& gate, const Tensor& up, std::span<const Tensor> weights,
                             const RowGroups& groups) {
  ops::require_floating("grouped_swiglu_linear", gate, up);
  require_floating_weights("grouped_swiglu_linear", gate, weights);
  const GroupedShape s = grouped_shape("grouped_swiglu_linear", gate, weights, groups);
  const DType dtype = s.each.dtype;
  TESSERA_REQUIRE(gate.shape() == up.shape() && gate.dtype() == dtype && up.dtype() == dtype,
                  "grouped_swiglu_linear: gate {} {}, up {} {}, weights {}", name_of(gate.dtype()),
                  gate.shape().to_string(), name_of(up.dtype()), up.shape().to_string(),
                  name_of(dtype));
  ops::require_same_device("grouped_swiglu_linear", gate, up);
  const std::int64_t rows = s.each.rows, in = s.each.in;
  Tensor out = Tensor::empty({rows, s.each.out}, dtype, gate.device());
  if (autograd::value_is_needed()) {
    const Tensor activated = Tensor::empty(gate.shape(), dtype, gate.device());
    TESSERA_LAUNCH(gate.device(), swiglu,
                   {gate.data(), up.data(), activated.raw_data(), rows, in, in, in, dtype});
    multiply_groups(s, activated, weights, out);
  }
  autograd::record(
      Op::grouped_swiglu_linear, with_weights({gate, up}, weights),
      std::span<const Tensor>(&out, 1),
      [s, saved_gate = autograd::SavedValue(gate), saved_up = autograd::SavedValue(up),
       kept = saved_weights(weights)](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Tensor& g = saved_gate.get();
        const auto like_gate = [&] { return Tensor::empty(g.shape(), g.dtype(), g.device()); };
        const Tensor dh = like_gate();
        group_input_gradients(s, dout[0], kept, {dh, false});
        const Tensor dgate = like_gate();
        const Tensor dup = like_gate();
        const Tensor h = like_gate();
        TESSERA_LAUNCH(
            g.device(), swiglu_backward,
            {dh.data(), g.data(), saved_up.get().data(), dgate.raw_data(), dup.raw_data(),
             h.raw_data(), s.each.rows, s.each.in, s.each.in, s.each.in, s.each.dtype});
        group_weight_gradients(s, h, dout[0], sink, 2);
        sink.add(0, dgate);
        sink.add(1, dup);
      },
      autograd::Reads::inputs);
  return out;
}

}  // namespace tessera
