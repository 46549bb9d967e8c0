// Reads and sums at ids, and sorting.
#include <algorithm>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops/strided.h"
#include "engine/recompute_region.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

void require_ids(const char* op, const Tensor& ids) {
  TESSERA_REQUIRE(ids.dtype() == int32 || ids.dtype() == int64,
                  "{}: ids of {}; int32 or int64 required", op, name_of(ids.dtype()));
}

// Ids along one dimension of x, as kernels take them.
struct AxisPlan {
  std::int64_t outer, entries, length, inner;
  bool shared;

  [[nodiscard]] kernels::AxisIds with(const Tensor& ids) const {
    return {ids.data(), ids.dtype(), outer, entries, length, inner, shared};
  }
};

AxisPlan axis_plan(const Shape& x, int dimension, std::int64_t length, bool shared) {
  return {ops::elements_between(x, 0, dimension), x[dimension], length,
          ops::elements_between(x, dimension + 1, x.dimensions()), shared};
}

void launch_gather(const AxisPlan& plan, const Tensor& ids, const Tensor& x, const Tensor& out) {
  TESSERA_LAUNCH(x.device(), gather, {plan.with(ids), x.data(), out.raw_data(), x.dtype()});
}
void launch_scatter(const AxisPlan& plan, const Tensor& ids, const Tensor& values,
                    const Tensor& out) {
  TESSERA_LAUNCH(out.device(), scatter_add,
                 {plan.with(ids), values.data(), out.raw_data(), out.dtype()});
}

Tensor gather_as(const char* name, const Tensor& x, const AxisPlan& plan, const Tensor& ids,
                 const Shape& shape) {
  Tensor out = Tensor::empty(shape, x.dtype(), x.device());
  launch_gather(plan, ids, x, out);
  if (!is_floating(x.dtype())) return out;
  autograd::record({Op::gather, name}, {x}, {out},
                   [plan, whole = x.shape(), saved = autograd::SavedValue(ids)](
                       std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                     const Tensor dx = Tensor::zeros(whole, dout[0].dtype(), dout[0].device());
                     launch_scatter(plan, saved.get(), dout[0], dx);
                     sink.add(0, dx);
                   });
  return out;
}

// An error of ids that another op finds, with the name of the op that was called.
template <class Run>
auto named(const char* op, Run run) {
  try {
    return run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    fail(ErrorCode::data, "{}: {}", op, error.what());
  }
}

// ids has x's sizes except in `dimension`.
void require_sizes(const char* op, const Tensor& x, int dimension, const char* what,
                   const Tensor& other) {
  const bool fits =
      other.dimensions() == x.dimensions() &&
      ops::with_size(other.shape(), dimension, 0) == ops::with_size(x.shape(), dimension, 0);
  TESSERA_REQUIRE(fits,
                  "{}: {} of shape {} for a tensor of shape {}; their sizes must be equal except "
                  "in dimension {}",
                  op, what, other.shape().to_string(), x.shape().to_string(), dimension);
}

}  // namespace

Tensor index_select(const Tensor& x, int dimension, const Tensor& ids) {
  ops::require_defined("index_select", x, ids);
  require_ids("index_select", ids);
  ops::require_same_device("index_select", x, ids);
  const int at = ops::dimension_of("index_select", x, dimension);
  TESSERA_REQUIRE(ids.dimensions() == 1, "index_select: ids of shape {}; they have one dimension",
                  ids.shape().to_string());
  const Shape shape = ops::with_size(x.shape(), at, ids.elements());
  const std::int64_t row = ops::elements_between(x.shape(), at + 1, x.dimensions());
  // Rows of a table: the gradient of embedding() sums with all of a GPU.
  if (at == 0 && is_floating(x.dtype()) && row > 0) {
    return named("index_select", [&] {
      return reshape(embedding(ids, reshape(x, Shape{x.size(0), row})), shape);
    });
  }
  return named("index_select", [&] {
    return gather_as("index_select", x, axis_plan(x.shape(), at, ids.elements(), true), ids, shape);
  });
}

Tensor gather(const Tensor& x, int dimension, const Tensor& ids) {
  ops::require_defined("gather", x, ids);
  require_ids("gather", ids);
  ops::require_same_device("gather", x, ids);
  const int at = ops::dimension_of("gather", x, dimension);
  require_sizes("gather", x, at, "ids", ids);
  return gather_as("gather", x, axis_plan(x.shape(), at, ids.size(at), false), ids, ids.shape());
}

Tensor scatter_add(const Tensor& x, int dimension, const Tensor& ids, const Tensor& values) {
  ops::require_defined("scatter_add", x, ids, values);
  ops::require_floating("scatter_add", x);
  require_ids("scatter_add", ids);
  ops::require_same_device("scatter_add", x, ids, values);
  const int at = ops::dimension_of("scatter_add", x, dimension);
  require_sizes("scatter_add", x, at, "ids", ids);
  TESSERA_REQUIRE(values.shape() == ids.shape() && values.dtype() == x.dtype(),
                  "scatter_add: values of {} {} for ids of shape {} and a tensor of {}",
                  name_of(values.dtype()), values.shape().to_string(), ids.shape().to_string(),
                  name_of(x.dtype()));
  const AxisPlan plan = axis_plan(x.shape(), at, ids.size(at), false);
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  ops::copy_strided(x.shape(), {x, 0, ops::strides_of(x.shape())},
                    {out, 0, ops::strides_of(x.shape())});
  launch_scatter(plan, ids, values, out);
  autograd::record(Op::scatter_add, {x, values}, {out},
                   [plan, saved = autograd::SavedValue(ids)](std::vector<Tensor>& dout,
                                                             autograd::GradientSink& sink) {
                     sink.add(0, dout[0]);
                     if (!sink.wants(1)) return;
                     const Tensor& at_ids = saved.get();
                     const Tensor dvalues =
                         Tensor::empty(at_ids.shape(), dout[0].dtype(), dout[0].device());
                     launch_gather(plan, at_ids, dout[0], dvalues);
                     sink.add(1, dvalues);
                   });
  return out;
}

Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype) {
  ops::require_defined("one_hot", ids);
  require_ids("one_hot", ids);
  TESSERA_REQUIRE(classes > 0 && is_floating(dtype),
                  "one_hot: {} classes as {}; at least one, as a floating dtype", classes,
                  name_of(dtype));
  Tensor out =
      Tensor::zeros(ops::with_new(ids.shape(), ids.dimensions(), classes), dtype, ids.device());
  const Tensor ones = Tensor::full(ids.shape(), 1, dtype, ids.device());
  named("one_hot", [&] { launch_scatter({ids.elements(), classes, 1, 1, false}, ids, ones, out); });
  autograd::note_values("one_hot", {ids}, {out});
  return out;
}

Tensor argsort(const Tensor& x, int dimension, bool descending) {
  ops::require_floating("argsort", x);
  const int at = ops::dimension_of("argsort", x, dimension);
  const bool last = at == x.dimensions() - 1;
  const Tensor rows = last ? x.detach() : transpose(x.detach(), at, -1);
  Tensor places = Tensor::empty(rows.shape(), int64, x.device());
  const std::int64_t length = rows.size(-1);
  const std::int64_t count = length == 0 ? 0 : rows.elements() / length;
  if (count > 0) {
    TESSERA_LAUNCH(
        x.device(), sort_order,
        {rows.data(), places.data_as<std::int64_t>(), count, length, x.dtype(), descending});
  }
  Tensor result = last ? places : transpose(places, at, -1);
  autograd::note_values("argsort", {x}, {result});
  return result;
}

Sorted sort(const Tensor& x, int dimension, bool descending) {
  ops::require_floating("sort", x);
  const Tensor places = argsort(x, dimension, descending);
  return {gather(x, dimension, places), places};
}

Sorted topk(const Tensor& x, std::int64_t count, int dimension, bool largest) {
  ops::require_floating("topk", x);
  const int at = ops::dimension_of("topk", x, dimension);
  TESSERA_REQUIRE(count >= 0 && count <= x.size(at),
                  "topk: {} elements of dimension {} of shape {}; from 0 to its {}", count,
                  dimension, x.shape().to_string(), x.size(at));
  const Tensor places = narrow(argsort(x, at, largest), at, 0, count);
  return {gather(x, at, places), places};
}

}  // namespace tessera
