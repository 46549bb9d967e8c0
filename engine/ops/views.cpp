// Permuted, sliced, repeated and reshaped tensors.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/op_checks.h"
#include "engine/ops/strided.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

// A view of x with as many elements.
Tensor viewed(const Tensor& x, const Shape& shape, std::int64_t offset = 0) {
  Tensor out = Tensor::view_of(
      x.storage(), x.impl()->offset + static_cast<std::size_t>(offset) * size_of(x.dtype()), shape,
      x.dtype());
  out.share_version(x);
  return out;
}

// `name` is the function that the program called.
Tensor permute_as(const char* name, const Tensor& x, std::vector<int> order) {
  std::vector<int> inverse(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    inverse[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  Tensor out = ops::permuted(x, order);
  autograd::record(
      {Op::permute, name}, {x}, {out},
      [inverse](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, ops::permuted(dout[0], inverse));
      },
      autograd::Reads::nothing);
  return out;
}

struct SliceRange {
  std::int64_t begin, count, step;
};

// Elements of one dimension; `x` is defined and the range is within it.
Tensor slice_as(const char* name, const Tensor& x, int dimension, SliceRange range) {
  const Shape shape = ops::with_size(x.shape(), dimension, range.count);
  auto strides = ops::strides_of(x.shape());
  auto& stride = strides[static_cast<std::size_t>(dimension)];
  const std::int64_t offset = range.begin * stride;
  stride *= range.step;
  const bool adjacent = range.count > 0 && (range.step == 1 || range.count == 1) &&
                        ops::elements_between(x.shape(), 0, dimension) == 1;
  Tensor out = adjacent ? viewed(x, shape, offset) : Tensor::empty(shape, x.dtype(), x.device());
  if (!adjacent) ops::copy_strided(shape, {x, offset, strides}, {out, 0, ops::strides_of(shape)});
  autograd::record(
      {Op::slice, name}, {x}, {out},
      [whole = x.shape(), strides, offset](std::vector<Tensor>& dout,
                                           autograd::GradientSink& sink) {
        const Tensor dx = Tensor::zeros(whole, dout[0].dtype(), dout[0].device());
        ops::copy_strided(dout[0].shape(), {dout[0], 0, ops::strides_of(dout[0].shape())},
                          {dx, offset, strides});
        sink.add(0, dx);
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace

Tensor permute(const Tensor& x, std::span<const int> order) {
  ops::require_defined("permute", x);
  std::vector<int> whole;
  for (const int dimension : order) whole.push_back(ops::dimension_of("permute", x, dimension));
  std::vector<int> sorted = whole;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> all(static_cast<std::size_t>(x.dimensions()));
  std::iota(all.begin(), all.end(), 0);
  TESSERA_REQUIRE(sorted == all,
                  "permute: {} dimensions for a tensor of shape {}; name each of its {} once",
                  order.size(), x.shape().to_string(), x.dimensions());
  return permute_as("permute", x, whole);
}

Tensor permute(const Tensor& x, std::initializer_list<int> order) {
  return permute(x, std::span<const int>(order.begin(), order.size()));
}

Tensor transpose(const Tensor& x, int first, int second) {
  ops::require_defined("transpose", x);
  const int a = ops::dimension_of("transpose", x, first);
  const int b = ops::dimension_of("transpose", x, second);
  std::vector<int> order(static_cast<std::size_t>(x.dimensions()));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
  return permute_as("transpose", x, order);
}

Tensor slice(const Tensor& x, int dimension, std::int64_t begin, std::int64_t end,
             std::int64_t step) {
  ops::require_defined("slice", x);
  const int at = ops::dimension_of("slice", x, dimension);
  TESSERA_REQUIRE(step > 0,
                  "slice: a step of {} in dimension {} of shape {}; it must be at least 1", step,
                  dimension, x.shape().to_string());
  const std::int64_t size = x.size(at);
  const auto place = [size](std::int64_t position) {
    return std::clamp<std::int64_t>(position < 0 ? position + size : position, 0, size);
  };
  const std::int64_t first = place(begin);
  const std::int64_t count = std::max<std::int64_t>(0, (place(end) - first + step - 1) / step);
  return slice_as("slice", x, at, {first, count, step});
}

Tensor narrow(const Tensor& x, int dimension, std::int64_t begin, std::int64_t length) {
  ops::require_defined("narrow", x);
  const int at = ops::dimension_of("narrow", x, dimension);
  const std::int64_t first = begin < 0 ? begin + x.size(at) : begin;
  TESSERA_REQUIRE(first >= 0 && length >= 0 && length <= x.size(at) - first,
                  "narrow: {} elements from {} of dimension {} of shape {}; they must exist",
                  length, begin, dimension, x.shape().to_string());
  return slice_as("narrow", x, at, {first, length, 1});
}

Tensor select(const Tensor& x, int dimension, std::int64_t index) {
  ops::require_defined("select", x);
  const int at = ops::dimension_of("select", x, dimension);
  const std::int64_t first = index < 0 ? index + x.size(at) : index;
  TESSERA_REQUIRE(first >= 0 && first < x.size(at),
                  "select: element {} of dimension {} of shape {}; it must exist", index, dimension,
                  x.shape().to_string());
  return reshape(slice_as("select", x, at, {first, 1, 1}), ops::without(x.shape(), at));
}

Tensor expand(const Tensor& x, const Shape& shape) {
  ops::require_defined("expand", x);
  TESSERA_REQUIRE(ops::broadcasts_to(x.shape(), shape),
                  "expand: shape {} to {}; aligned at their ends, sizes must be equal or 1",
                  x.shape().to_string(), shape.to_string());
  if (x.shape() == shape) return x;
  Tensor out = ops::expanded(x, shape);
  autograd::record(
      Op::expand, {x}, {out},
      [from = x.shape()](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, ops::sum_to(dout[0], from));
      },
      autograd::Reads::nothing);
  return out;
}

Tensor squeeze(const Tensor& x, int dimension) {
  ops::require_defined("squeeze", x);
  const int at = ops::dimension_of("squeeze", x, dimension);
  TESSERA_REQUIRE(x.size(at) == 1, "squeeze: dimension {} of shape {} has not size 1", dimension,
                  x.shape().to_string());
  return reshape(x, ops::without(x.shape(), at));
}

Tensor unsqueeze(const Tensor& x, int dimension) {
  ops::require_defined("unsqueeze", x);
  const int at = ops::dimension_of("unsqueeze", x, dimension, 1);
  return reshape(x, ops::with_new(x.shape(), at, 1));
}

}  // namespace tessera
