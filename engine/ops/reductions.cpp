// Sums, extremes and running sums over dimensions.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops/pointwise.h"
#include "engine/ops/strided.h"
#include "engine/recompute_region.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

using kernels::PointwiseOp;
using kernels::ReduceOp;

// The dtype of intermediate values: 16-bit results are rounded once.
DType wide(DType dtype) {
  return dtype == float64 ? float64 : float32;
}

// The dimensions of a reduction: those that go, in ascending order, and the shapes without them.
struct ReducePlan {
  std::vector<int> reduced, kept;
  Shape kept_shape, one_shape;  // without the reduced dimensions; with size 1 in their place
  std::int64_t count = 1;       // of elements for each result

  [[nodiscard]] const Shape& result(bool keep) const { return keep ? one_shape : kept_shape; }
};

ReducePlan reduce_plan(const char* op, const Tensor& x, const std::vector<int>& dimensions) {
  ReducePlan plan;
  if (dimensions.empty()) {
    plan.reduced.resize(static_cast<std::size_t>(x.dimensions()));
    std::iota(plan.reduced.begin(), plan.reduced.end(), 0);
  }
  for (const int dimension : dimensions)
    plan.reduced.push_back(ops::dimension_of(op, x, dimension));
  std::sort(plan.reduced.begin(), plan.reduced.end());
  TESSERA_REQUIRE(
      std::adjacent_find(plan.reduced.begin(), plan.reduced.end()) == plan.reduced.end(),
      "{}: a dimension of shape {} is named twice", op, x.shape().to_string());
  std::vector<std::int64_t> kept, ones;
  for (int i = 0; i < x.dimensions(); ++i) {
    const bool goes = std::binary_search(plan.reduced.begin(), plan.reduced.end(), i);
    ones.push_back(goes ? 1 : x.size(i));
    if (goes) {
      plan.count *= x.size(i);
    } else {
      plan.kept.push_back(i);
      kept.push_back(x.size(i));
    }
  }
  plan.kept_shape = Shape(kept);
  plan.one_shape = Shape(ones);
  return plan;
}

// The result of a kernel over the planned dimensions. Dimensions that are not neighbours are
// brought together first.
Tensor reduced(ReduceOp op, const Tensor& x, const ReducePlan& plan, const Shape& shape,
               double scale = 1) {
  const bool places = op == ReduceOp::argmax || op == ReduceOp::argmin;
  Tensor out = Tensor::empty(shape, places ? int64 : x.dtype(), x.device());
  if (op == ReduceOp::sum && plan.kept.empty()) {
    TESSERA_LAUNCH(x.device(), sum_all, {x.data(), out.data(), x.elements(), x.dtype(), scale});
    return out;
  }
  const auto neighbours = [](int a, int b) { return b != a + 1; };
  const bool together = std::adjacent_find(plan.reduced.begin(), plan.reduced.end(), neighbours) ==
                        plan.reduced.end();
  Tensor from = x;
  std::int64_t outer = plan.kept_shape.elements(), inner = 1;
  if (together && !plan.reduced.empty()) {
    outer = ops::elements_between(x.shape(), 0, plan.reduced.front());
    inner = ops::elements_between(x.shape(), plan.reduced.back() + 1, x.dimensions());
  } else if (!together) {
    std::vector<int> order = plan.kept;
    order.insert(order.end(), plan.reduced.begin(), plan.reduced.end());
    from = ops::permuted(x, order);
  }
  TESSERA_LAUNCH(x.device(), reduce,
                 {op, from.data(), out.data(), outer, plan.count, inner, x.dtype(), scale});
  return out;
}

Tensor reshaped(const Tensor& x, const Shape& shape) {
  return Tensor::view_of(x.storage(), x.impl()->offset, shape, x.dtype());
}

Tensor scaled_sum_of(const char* name, const Tensor& x, const ReducePlan& plan, bool keep,
                     double scale) {
  Tensor out = reduced(ReduceOp::sum, x, plan, plan.result(keep), scale);
  autograd::record(
      {Op::reduce, name}, {x}, {out},
      [shape = x.shape(), ones = plan.one_shape, scale](std::vector<Tensor>& dout,
                                                        autograd::GradientSink& sink) {
        const Tensor g = scale == 1 ? dout[0] : affine(dout[0], scale, -0.0);
        sink.add(0, ops::expanded(reshaped(g, ones), shape));
      },
      autograd::Reads::nothing);
  return out;
}

// Spreads the gradient of an extreme evenly over the elements that are equal to it.
Tensor spread_to_equals(const Tensor& g, const Tensor& x, const Tensor& extreme,
                        const ReducePlan& plan) {
  const DType dtype = wide(x.dtype());
  const Tensor mask = ops::pointwise(PointwiseOp::equal, x.shape(), x.dtype(),
                                     {x, reshaped(extreme, plan.one_shape)});
  const Tensor ones = ops::pointwise(PointwiseOp::select, x.shape(), dtype, {mask, 1.0, 0.0});
  const Tensor equals = reduced(ReduceOp::sum, ones, plan, plan.one_shape);
  const Tensor share = ops::pointwise(PointwiseOp::divide, plan.one_shape, dtype,
                                      {reshaped(cast(g, dtype), plan.one_shape), equals});
  return cast(ops::pointwise(PointwiseOp::multiply, x.shape(), dtype, {ones, share}), x.dtype());
}

Tensor extreme(const char* name, ReduceOp op, const Tensor& x, const Dimensions& dimensions,
               bool keep) {
  ops::require_floating(name, x);
  const ReducePlan plan = reduce_plan(name, x, dimensions.list());
  TESSERA_REQUIRE(plan.count > 0 || plan.kept_shape.elements() == 0,
                  "{}: shape {} has no elements to choose from", name, x.shape().to_string());
  Tensor out = reduced(op, x, plan, plan.result(keep));
  autograd::record({Op::reduce, name}, {x}, {out},
                   [plan, saved = autograd::SavedValue(x), y = out.detach()](
                       std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                     sink.add(0, spread_to_equals(dout[0], saved.get(), y, plan));
                   });
  return out;
}

Tensor place_of_extreme(const char* name, ReduceOp op, const Tensor& x, int dimension, bool keep) {
  ops::require_floating(name, x);
  const ReducePlan plan = reduce_plan(name, x, {ops::dimension_of(name, x, dimension)});
  TESSERA_REQUIRE(plan.count > 0 || plan.kept_shape.elements() == 0,
                  "{}: shape {} has no elements to choose from", name, x.shape().to_string());
  Tensor out = reduced(op, x, plan, plan.result(keep));
  autograd::note_values(name, {x}, {out});
  return out;
}

}  // namespace

Tensor sum(const Tensor& x, const Dimensions& dimensions, bool keep) {
  ops::require_floating("sum", x);
  return scaled_sum_of("sum", x, reduce_plan("sum", x, dimensions.list()), keep, 1);
}

Tensor mean(const Tensor& x, const Dimensions& dimensions, bool keep) {
  ops::require_floating("mean", x);
  const ReducePlan plan = reduce_plan("mean", x, dimensions.list());
  TESSERA_REQUIRE(plan.count > 0, "mean: shape {} has no elements to average",
                  x.shape().to_string());
  return scaled_sum_of("mean", x, plan, keep, 1.0 / static_cast<double>(plan.count));
}

Tensor max(const Tensor& x, const Dimensions& dimensions, bool keep) {
  return extreme("max", ReduceOp::maximum, x, dimensions, keep);
}
Tensor min(const Tensor& x, const Dimensions& dimensions, bool keep) {
  return extreme("min", ReduceOp::minimum, x, dimensions, keep);
}
Tensor argmax(const Tensor& x, int dimension, bool keep) {
  return place_of_extreme("argmax", ReduceOp::argmax, x, dimension, keep);
}
Tensor argmin(const Tensor& x, int dimension, bool keep) {
  return place_of_extreme("argmin", ReduceOp::argmin, x, dimension, keep);
}

Tensor variance(const Tensor& x, const Dimensions& dimensions, double correction, bool keep) {
  ops::require_floating("variance", x);
  const ReducePlan plan = reduce_plan("variance", x, dimensions.list());
  const double divisor = static_cast<double>(plan.count) - correction;
  TESSERA_REQUIRE(divisor > 0, "variance: {} elements of shape {} with a correction of {}",
                  plan.count, x.shape().to_string(), correction);
  const Tensor values = cast(x, wide(x.dtype()));
  const Tensor deviations = values - mean(values, dimensions, true);
  return cast(scaled_sum_of("variance", square(deviations), plan, keep, 1 / divisor), x.dtype());
}

Tensor logsumexp(const Tensor& x, const Dimensions& dimensions, bool keep) {
  ops::require_floating("logsumexp", x);
  const ReducePlan plan = reduce_plan("logsumexp", x, dimensions.list());
  const Tensor values = cast(x, wide(x.dtype()));
  // The largest value; 0 where it is infinite, because inf - inf is NaN.
  Tensor largest = max(values.detach(), dimensions, true);
  largest = masked_fill(largest, equal(abs(largest), std::numeric_limits<double>::infinity()), 0);
  const Tensor sums = log(sum(exp(values - largest), dimensions, true)) + largest;
  return cast(reshape(sums, plan.result(keep)), x.dtype());
}

Tensor norm(const Tensor& x, double p, const Dimensions& dimensions, bool keep) {
  ops::require_floating("norm", x);
  TESSERA_REQUIRE(p > 0, "norm: p is {}; it must be positive", p);
  const Tensor values = cast(x, wide(x.dtype()));
  Tensor result;
  if (std::isinf(p)) {
    result = max(abs(values), dimensions, keep);
  } else if (p == 1) {
    result = sum(abs(values), dimensions, keep);
  } else if (p == 2) {
    // The square root has no slope at 0: there it is that of another number, and the product with 0
    // is 0.
    const Tensor squares = sum(square(values), dimensions, keep);
    const Tensor zero = equal(squares, 0.0);
    result = masked_fill(sqrt(masked_fill(squares, zero, 1)), zero, 0);
  } else {
    result = pow(sum(pow(abs(values), p), dimensions, keep), 1 / p);
  }
  return cast(result, x.dtype());
}

namespace {

// `op` over the last dimension, applied to another one.
template <class Function>
Tensor over_last(const Tensor& x, int dimension, Function&& op) {
  if (dimension == x.dimensions() - 1) return op(x);
  return transpose(op(transpose(x, dimension, -1)), dimension, -1);
}

}  // namespace

Tensor softmax(const Tensor& x, int dimension) {
  ops::require_floating("softmax", x);
  return over_last(x, ops::dimension_of("softmax", x, dimension),
                   [](const Tensor& rows) { return softmax(rows); });
}

Tensor log_softmax(const Tensor& x, int dimension) {
  ops::require_floating("log_softmax", x);
  const int at = ops::dimension_of("log_softmax", x, dimension);
  if (x.elements() == 0) return x;
  const Tensor values = cast(x, wide(x.dtype()));
  return cast(values - logsumexp(values, at, true), x.dtype());
}

Tensor cumulative_sum(const Tensor& x, int dimension) {
  ops::require_floating("cumulative_sum", x);
  const int at = ops::dimension_of("cumulative_sum", x, dimension);
  const auto run = [outer = ops::elements_between(x.shape(), 0, at), length = x.size(at),
                    inner = ops::elements_between(x.shape(), at + 1, x.dimensions())](
                       const Tensor& in, bool reverse) {
    Tensor out = Tensor::empty(in.shape(), in.dtype(), in.device());
    TESSERA_LAUNCH(in.device(), cumulative_sum,
                   {in.data(), out.data(), outer, length, inner, in.dtype(), reverse});
    return out;
  };
  Tensor out = run(x, false);
  autograd::record(
      Op::cumulative_sum, {x}, {out},
      [run](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, run(dout[0], true));
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace tessera
