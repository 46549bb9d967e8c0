// Shared by the ops on shapes: dimensions counted from either end, strides, and the strided copy
// between tensors.
#pragma once

#include <array>
#include <vector>

#include "engine/tensor.h"
#include "kernels/strided.h"

namespace tessera::ops {

// The dimension in [0, x.dimensions()), or in [0, x.dimensions() + extra); negative ones count from
// the end. Throws a logic_error.
int dimension_of(const char* op, const Tensor& x, int dimension, int extra = 0);

// Elements between neighbours in each dimension of a contiguous tensor.
std::array<std::int64_t, Shape::max_dimensions> strides_of(const Shape& shape);

// The sizes, with one of them exchanged; without one; with a new one.
Shape with_size(const Shape& shape, int dimension, std::int64_t size);
Shape without(const Shape& shape, int dimension);
Shape with_new(const Shape& shape, int dimension, std::int64_t size);

// The product of the sizes [first, last).
std::int64_t elements_between(const Shape& shape, int first, int last);

// A copy over `sizes`, between elements that begin at these offsets. It launches nothing without
// elements or on `meta`.
struct Strided {
  const Tensor& tensor;
  std::int64_t offset;
  std::array<std::int64_t, Shape::max_dimensions> strides;
};
void copy_strided(const Shape& sizes, const Strided& from, const Strided& to);

// The same outside the graph, for backwards: x repeated to a shape that it broadcasts to; its
// dimensions in this order.
Tensor expanded(const Tensor& x, const Shape& shape);
Tensor permuted(const Tensor& x, std::span<const int> order);
// True if x broadcasts to the shape.
bool broadcasts_to(const Shape& x, const Shape& shape);
// The sum of a gradient over the dimensions in which a tensor of `shape` was repeated to the
// gradient's shape.
Tensor sum_to(const Tensor& gradient, const Shape& shape);

}  // namespace tessera::ops
