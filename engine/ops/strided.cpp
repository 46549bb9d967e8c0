// Dimensions, strides and strided copies.
#include "engine/ops/strided.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/ops.h"

namespace tessera::ops {

namespace {

std::vector<std::int64_t> sizes_of(const Shape& shape) {
  return {shape.sizes().begin(), shape.sizes().end()};
}

}  // namespace

int dimension_of(const char* op, const Tensor& x, int dimension, int extra) {
  const int count = x.dimensions() + extra;
  const int from_start = dimension < 0 ? dimension + count : dimension;
  TESSERA_REQUIRE(from_start >= 0 && from_start < count,
                  "{}: dimension {} of a tensor of shape {}; it is from {} to {}", op, dimension,
                  x.shape().to_string(), -count, count - 1);
  return from_start;
}

std::array<std::int64_t, Shape::max_dimensions> strides_of(const Shape& shape) {
  std::array<std::int64_t, Shape::max_dimensions> strides{};
  std::int64_t stride = 1;
  for (int i = shape.dimensions() - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = stride;
    stride *= shape[i];
  }
  return strides;
}

Shape with_size(const Shape& shape, int dimension, std::int64_t size) {
  std::vector<std::int64_t> sizes = sizes_of(shape);
  sizes[static_cast<std::size_t>(dimension)] = size;
  return Shape(sizes);
}

Shape without(const Shape& shape, int dimension) {
  std::vector<std::int64_t> sizes = sizes_of(shape);
  sizes.erase(sizes.begin() + dimension);
  return Shape(sizes);
}

Shape with_new(const Shape& shape, int dimension, std::int64_t size) {
  std::vector<std::int64_t> sizes = sizes_of(shape);
  sizes.insert(sizes.begin() + dimension, size);
  return Shape(sizes);
}

std::int64_t elements_between(const Shape& shape, int first, int last) {
  std::int64_t product = 1;
  for (int i = first; i < last; ++i) product *= shape[i];
  return product;
}

void copy_strided(const Shape& sizes, const Strided& from, const Strided& to) {
  if (from.tensor.is_meta() || to.tensor.is_meta() || sizes.elements() == 0) return;
  const auto at = [](const Strided& side) {
    return side.tensor.raw_data() +
           side.offset * static_cast<std::int64_t>(size_of(side.tensor.dtype()));
  };
  kernels::StridedCopy copy{
      from.tensor.data() + (at(from) - from.tensor.raw_data()), at(to), {}, to.tensor.dtype()};
  copy.shape.dimensions = sizes.dimensions();
  for (int i = 0; i < sizes.dimensions(); ++i) {
    copy.shape.sizes[i] = sizes[i];
    copy.shape.strides[0][i] = from.strides[static_cast<std::size_t>(i)];
    copy.shape.strides[1][i] = to.strides[static_cast<std::size_t>(i)];
  }
  TESSERA_LAUNCH(to.tensor.device(), strided_copy, copy);
}

Tensor permuted(const Tensor& x, std::span<const int> order) {
  const auto strides = strides_of(x.shape());
  std::array<std::int64_t, Shape::max_dimensions> from{};
  std::vector<std::int64_t> sizes;
  for (const int dimension : order) {
    from[sizes.size()] = strides[static_cast<std::size_t>(dimension)];
    sizes.push_back(x.size(dimension));
  }
  Tensor out = Tensor::empty(Shape(sizes), x.dtype(), x.device());
  copy_strided(out.shape(), {x, 0, from}, {out, 0, strides_of(out.shape())});
  return out;
}

bool broadcasts_to(const Shape& x, const Shape& shape) {
  const int extra = shape.dimensions() - x.dimensions();
  if (extra < 0) return false;
  for (int i = 0; i < x.dimensions(); ++i) {
    if (x[i] != 1 && x[i] != shape[extra + i]) return false;
  }
  return true;
}

Tensor expanded(const Tensor& x, const Shape& shape) {
  const int extra = shape.dimensions() - x.dimensions();
  const auto strides = strides_of(x.shape());
  std::array<std::int64_t, Shape::max_dimensions> from{};
  for (int i = 0; i < x.dimensions(); ++i) {
    from[static_cast<std::size_t>(extra) + static_cast<std::size_t>(i)] =
        x.size(i) == 1 ? 0 : strides[static_cast<std::size_t>(i)];
  }
  Tensor out = Tensor::empty(shape, x.dtype(), x.device());
  copy_strided(shape, {x, 0, from}, {out, 0, strides_of(shape)});
  return out;
}

namespace {

// The sum over [outer, reduced, inner] for each of outer and inner.
Tensor middle_sum(const Tensor& x, std::int64_t outer, std::int64_t reduced, std::int64_t inner) {
  Tensor out = Tensor::empty({outer, inner}, x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), reduce,
                 {kernels::ReduceOp::sum, x.data(), out.data(), outer, reduced, inner, x.dtype()});
  return out;
}

// The sum over these dimensions. They are brought together in a copy of x, so that one reduction
// rounds the sum once.
Tensor sum_over(const Tensor& x, const std::vector<int>& repeated) {
  std::vector<int> order;
  std::int64_t reduced = 1;
  for (int i = 0; i < x.dimensions(); ++i) {
    if (!std::binary_search(repeated.begin(), repeated.end(), i)) order.push_back(i);
  }
  for (const int i : repeated) reduced *= x.size(i);
  order.insert(order.end(), repeated.begin(), repeated.end());
  const std::int64_t kept = reduced == 0 ? 0 : x.elements() / reduced;
  return middle_sum(permuted(x, order), kept, reduced, 1);
}

}  // namespace

Tensor sum_to(const Tensor& gradient, const Shape& shape) {
  if (gradient.shape() == shape) return gradient;
  Tensor sum = gradient;
  const int extra = gradient.dimensions() - shape.dimensions();
  const auto repeated = [&](int i) {
    return gradient.size(i) != 1 && (i < extra || shape[i - extra] == 1);
  };
  std::vector<int> all;
  for (int i = 0; i < gradient.dimensions(); ++i) {
    if (repeated(i)) all.push_back(i);
  }
  const bool one_run = all.empty() || all.back() - all.front() + 1 == static_cast<int>(all.size());
  if (!one_run && size_of(gradient.dtype()) < size_of(float32)) {
    sum = sum_over(gradient, all);
    all.clear();
  }
  // One reduction for each run of repeated dimensions, from the last to the first.
  for (int last = gradient.dimensions() - 1; last >= 0 && !all.empty(); --last) {
    if (!repeated(last)) continue;
    int first = last;
    while (first > 0 && repeated(first - 1)) --first;
    const std::int64_t outer = elements_between(gradient.shape(), 0, first);
    const std::int64_t reduced = elements_between(gradient.shape(), first, last + 1);
    const std::int64_t inner = outer * reduced == 0 ? 0 : sum.elements() / (outer * reduced);
    sum = middle_sum(sum, outer, reduced, inner);
    last = first;
  }
  if (sum.elements() != shape.elements()) return Tensor::zeros(shape, sum.dtype(), sum.device());
  return Tensor::view_of(sum.storage(), sum.impl()->offset, shape, sum.dtype());
}

}  // namespace tessera::ops
