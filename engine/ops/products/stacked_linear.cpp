// Grouped products whose weights lie in one tensor.
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/products/grouped.h"
#include "engine/ops/products/linear_products.h"

namespace tessera {
namespace {

constexpr const char* stacked_op = "grouped_linear";

// The part of a group in a tensor with an equal part for each group.
Tensor part_of(const Tensor& whole, const Shape& part, std::int64_t group) {
  if (!whole.defined()) return {};
  const std::size_t bytes = static_cast<std::size_t>(part.elements()) * size_of(whole.dtype());
  return Tensor::view_of(whole.storage(),
                         whole.impl()->offset + static_cast<std::size_t>(group) * bytes, part,
                         whole.dtype());
}

// The products of all groups; `each` has the sizes of one.
struct StackedShape {
  ops::LinearShape each;
  std::vector<std::int64_t> starts;

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(starts.size()) - 1; }
  [[nodiscard]] ops::LinearShape of(std::int64_t group) const {
    const auto at = static_cast<std::size_t>(group);
    ops::LinearShape shape = each;
    shape.first_row = starts[at];
    shape.rows = starts[at + 1] - starts[at];
    return shape;
  }
  [[nodiscard]] Tensor weight(const Tensor& weights, std::int64_t group) const {
    const Shape shape = each.transposed ? Shape{each.out, each.in} : Shape{each.in, each.out};
    return part_of(weights, shape, group);
  }
  [[nodiscard]] Tensor bias(const Tensor& biases, std::int64_t group) const {
    return part_of(biases, Shape{each.out}, group);
  }
};

StackedShape stacked_shape(const Tensor& x, const Tensor& weights, const Tensor& biases,
                           const RowGroups& groups, WeightLayout layout) {
  TESSERA_REQUIRE(
      weights.dimensions() == 3 && groups.count() > 0 && weights.size(0) == groups.count(),
      "{}: weights of shape {} for {} groups; three dimensions are required, the first "
      "of the groups",
      stacked_op, weights.shape().to_string(), groups.count());
  ops::require_same_device(stacked_op, x, weights, biases);
  const bool transposed = layout == WeightLayout::out_in;
  const std::int64_t in = weights.size(transposed ? 2 : 1), out = weights.size(transposed ? 1 : 2);
  TESSERA_REQUIRE(x.dimensions() == 2 && x.size(0) == groups.rows() && x.size(1) == in,
                  "{}: x of shape {} for groups of {} rows and weights of shape {}; x must be "
                  "[{}, {}]",
                  stacked_op, x.shape().to_string(), groups.rows(), weights.shape().to_string(),
                  groups.rows(), in);
  TESSERA_REQUIRE(!biases.defined() || (biases.shape() == (Shape{groups.count(), out}) &&
                                        biases.dtype() == weights.dtype()),
                  "{}: biases of {} {} for {} groups with {} outputs of {}", stacked_op,
                  name_of(biases.dtype()), biases.shape().to_string(), groups.count(), out,
                  name_of(weights.dtype()));
  return {{.rows = groups.rows(),
           .in = in,
           .out = out,
           .transposed = transposed,
           .dtype = weights.dtype()},
          groups.starts};
}

using Slot = autograd::GradientSink::Slot;

// An empty group has a gradient as well: which groups are empty differs from rank to rank, and all
// ranks reduce the same gradients.
void zero_unless_accumulated(const Slot& slot) {
  if (slot.accumulate) return;
  TESSERA_LAUNCH(slot.tensor.device(), fill,
                 {slot.tensor.raw_data(), slot.tensor.elements(), slot.tensor.dtype(), 0.0});
}

void weight_gradients(const StackedShape& s, const Tensor& x, const Tensor& dout,
                      const Slot& whole) {
  for (std::int64_t g = 0; g < s.count(); ++g) {
    const ops::LinearShape group = s.of(g);
    const Slot slot{s.weight(whole.tensor, g), whole.accumulate};
    if (group.rows > 0) {
      ops::linear_weight_gradient(group, x, dout, slot);
    } else {
      zero_unless_accumulated(slot);
    }
  }
}

void bias_gradients(const StackedShape& s, const Tensor& dout, const Slot& whole) {
  for (std::int64_t g = 0; g < s.count(); ++g) {
    const ops::LinearShape group = s.of(g);
    const Slot slot{s.bias(whole.tensor, g), whole.accumulate};
    if (group.rows == 0) {
      zero_unless_accumulated(slot);
      continue;
    }
    const std::int64_t first = group.first_row * s.each.out;
    TESSERA_LAUNCH(dout.device(), sum_rows,
                   {dout.data() + first * static_cast<std::int64_t>(size_of(dout.dtype())),
                    slot.tensor.raw_data(), group.rows, s.each.out, s.each.dtype, slot.accumulate});
  }
}

}  // namespace

Tensor grouped_linear(const Tensor& input, const Tensor& weights, const Tensor& biases,
                      const RowGroups& groups, WeightLayout layout) {
  ops::require_floating(stacked_op, input, weights);
  if (biases.defined()) ops::require_floating(stacked_op, input, weights, biases);
  const Tensor x = cast(input, weights.dtype());
  const StackedShape s = stacked_shape(x, weights, biases, groups, layout);
  Tensor out = Tensor::empty({groups.rows(), s.each.out}, s.each.dtype, x.device());
  if (autograd::value_is_needed()) {
    for (std::int64_t g = 0; g < s.count(); ++g) {
      const ops::LinearShape group = s.of(g);
      if (group.rows == 0) continue;
      ops::linear_product(group, x, s.weight(weights, g), s.bias(biases, g), out);
    }
  }
  // Only the weights' gradient needs x.
  const autograd::SavedTensor saved(weights.requires_grad() ? x : Tensor{});
  autograd::record(
      Op::grouped_linear, {x, weights, biases}, {out},
      [s, saved, kept = autograd::SavedValue(weights)](std::vector<Tensor>& dout,
                                                       autograd::GradientSink& sink) {
        if (sink.wants(1)) weight_gradients(s, saved.get(), dout[0], sink.wide_slot(1));
        if (sink.wants(2)) bias_gradients(s, dout[0], sink.slot(2));
        if (!sink.wants(0)) return;
        const Slot dx = sink.slot(0);
        for (std::int64_t g = 0; g < s.count(); ++g) {
          const ops::LinearShape group = s.of(g);
          if (group.rows == 0) continue;
          ops::linear_input_gradient(group, dout[0], s.weight(kept.get(), g), dx);
        }
      },
      autograd::Reads::inputs);
  return out;
}

}  // namespace tessera
