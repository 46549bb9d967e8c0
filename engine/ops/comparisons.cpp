// Comparisons, logic, and selections by masks.
#include <cmath>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/op_checks.h"
#include "engine/ops/pointwise.h"
#include "engine/ops/strided.h"
#include "engine/recompute_region.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

using kernels::PointwiseOp;
using ops::PointwiseOperand;

Tensor compare(const char* name, PointwiseOp op, const Tensor& x, const PointwiseOperand& y) {
  ops::require_defined(name, x);
  const PointwiseOperand operands[] = {x, y};
  ops::require_alike(name, operands);
  Tensor out = ops::pointwise(op, ops::broadcast_shape(name, operands), x.dtype(), operands);
  autograd::note_values(name, {x, y.tensor}, {out});
  return out;
}
Tensor compare(const char* name, PointwiseOp op, const Tensor& x, const Tensor& y) {
  ops::require_defined(name, x, y);
  return compare(name, op, x, PointwiseOperand(y));
}

struct IntegerComparison {
  PointwiseOp op;
  double number;  // whole, and of int64
};

// The comparison of an integer with any real number.
IntegerComparison of_integers(PointwiseOp op, double y) {
  constexpr double lowest = -0x1p63, beyond = 0x1p63;
  const auto always = [](bool holds) -> IntegerComparison {
    return {holds ? PointwiseOp::greater_equal : PointwiseOp::less, lowest};
  };
  const bool above = op == PointwiseOp::greater || op == PointwiseOp::greater_equal;
  const bool below = op == PointwiseOp::less || op == PointwiseOp::less_equal;
  const bool differs = op == PointwiseOp::not_equal;
  if (std::isnan(y)) return always(differs);
  if (y >= beyond) return always(differs || below);
  if (y < lowest) return always(differs || above);
  if (y == std::floor(y)) return {op, y};
  if (!above && !below) return always(differs);
  const bool up = op == PointwiseOp::less || op == PointwiseOp::greater_equal;
  return {op, up ? std::ceil(y) : std::floor(y)};
}

Tensor compare(const char* name, PointwiseOp op, const Tensor& x, double y) {
  ops::require_defined(name, x);
  if (is_floating(x.dtype())) return compare(name, op, x, PointwiseOperand(y));
  const IntegerComparison exact = of_integers(op, y);
  return compare(name, exact.op, x, PointwiseOperand(exact.number));
}

void require_mask(const char* op, const Tensor& mask) {
  TESSERA_REQUIRE(mask.dtype() == boolean || mask.dtype() == uint8,
                  "{}: a mask of {} and shape {}; it is boolean or uint8, as comparisons give it",
                  op, name_of(mask.dtype()), mask.shape().to_string());
}

// Logic of masks; uint8 and boolean may meet.
Tensor logic(const char* name, PointwiseOp op, const Tensor& x, const Tensor& y) {
  ops::require_defined(name, x, y);
  require_mask(name, x);
  require_mask(name, y);
  ops::require_same_device(name, x, y);
  const PointwiseOperand operands[] = {x, y};
  Tensor out = ops::pointwise(op, ops::broadcast_shape(name, operands), boolean, operands);
  autograd::note_values(name, {x, y}, {out});
  return out;
}

// A selection whose branches may be numbers.
Tensor where_as(const char* name, const Tensor& mask, const PointwiseOperand& x,
                const PointwiseOperand& y) {
  require_mask(name, mask);
  const PointwiseOperand branches[] = {x, y};
  ops::require_alike(name, branches);
  const Tensor& tensor = x.tensor.defined() ? x.tensor : y.tensor;
  ops::require_same_device(name, tensor, mask);
  const PointwiseOperand operands[] = {mask, x, y};
  Tensor out = ops::pointwise(PointwiseOp::select, ops::broadcast_shape(name, operands),
                              tensor.dtype(), operands);
  if (!is_floating(out.dtype())) {
    autograd::note_values(name, {mask, x.tensor, y.tensor}, {out});
    return out;
  }
  autograd::record(
      {Op::where, name}, {x.tensor, y.tensor}, {out},
      [saved = autograd::SavedValue(mask),
       x_shape = x.tensor.defined() ? x.tensor.shape() : Shape{},
       y_shape = y.tensor.defined() ? y.tensor.shape() : Shape{}](std::vector<Tensor>& dout,
                                                                  autograd::GradientSink& sink) {
        const Tensor& g = dout[0];
        const auto part = [&](const PointwiseOperand& yes, const PointwiseOperand& no) {
          return ops::pointwise(PointwiseOp::select, g.shape(), g.dtype(), {saved.get(), yes, no});
        };
        if (sink.wants(0)) sink.add(0, ops::sum_to(part(g, 0.0), x_shape));
        if (sink.wants(1)) sink.add(1, ops::sum_to(part(0.0, g), y_shape));
      });
  return out;
}

}  // namespace

#define TESSERA_COMPARISON(name)                    \
  Tensor name(const Tensor& x, const Tensor& y) {   \
    return compare(#name, PointwiseOp::name, x, y); \
  }                                                 \
  Tensor name(const Tensor& x, double y) {          \
    return compare(#name, PointwiseOp::name, x, y); \
  }
TESSERA_COMPARISON(equal)
TESSERA_COMPARISON(not_equal)
TESSERA_COMPARISON(less)
TESSERA_COMPARISON(less_equal)
TESSERA_COMPARISON(greater)
TESSERA_COMPARISON(greater_equal)
#undef TESSERA_COMPARISON

Tensor logical_and(const Tensor& x, const Tensor& y) {
  return logic("logical_and", PointwiseOp::logical_and, x, y);
}
Tensor logical_or(const Tensor& x, const Tensor& y) {
  return logic("logical_or", PointwiseOp::logical_or, x, y);
}
Tensor logical_not(const Tensor& x) {
  ops::require_defined("logical_not", x);
  require_mask("logical_not", x);
  Tensor out = ops::pointwise(PointwiseOp::logical_not, x.shape(), boolean, {x});
  autograd::note_values("logical_not", {x}, {out});
  return out;
}

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  ops::require_defined("where", condition, x, y);
  return where_as("where", condition, x, y);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  ops::require_defined("masked_fill", x, mask);
  TESSERA_REQUIRE(ops::broadcasts_to(mask.shape(), x.shape()),
                  "masked_fill: a mask of shape {} does not broadcast to {}",
                  mask.shape().to_string(), x.shape().to_string());
  return where_as("masked_fill", mask, value, x);
}

}  // namespace tessera
