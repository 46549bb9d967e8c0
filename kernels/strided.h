// Arrays that are walked by strides, and the copy between two of them: the kernel behind permute,
// slice, expand, pad, concatenate, stack and split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

inline constexpr int most_dimensions = 6;

// `operands` arrays of the same sizes, row-major: element (i0, i1, ...) of operand k is i0 *
// strides[k][0] + i1 * strides[k][1] + ... elements after its first. A stride of 0 repeats an
// element. No dimensions: one element.
template <int operands>
struct StridedShape {
  int dimensions = 0;
  std::int64_t sizes[most_dimensions] = {};
  std::int64_t strides[operands][most_dimensions] = {};

  [[nodiscard]] std::int64_t elements() const { return elements_of(dimensions); }
  // The product of the first `count` sizes.
  [[nodiscard]] std::int64_t elements_of(int count) const {
    std::int64_t product = 1;
    for (int i = 0; i < count; ++i) product *= sizes[i];
    return product;
  }
};

// The same elements in the same order with the fewest dimensions: without sizes of 1, and with
// neighbours joined where one step of the outer is the whole inner in every operand. At least one
// dimension.
template <int operands>
StridedShape<operands> merged(const StridedShape<operands>& shape) {
  StridedShape<operands> out;
  for (int i = 0; i < shape.dimensions; ++i) {
    if (shape.sizes[i] == 1) continue;
    bool joins = out.dimensions > 0;
    for (int k = 0; joins && k < operands; ++k) {
      joins = out.strides[k][out.dimensions - 1] == shape.strides[k][i] * shape.sizes[i];
    }
    const int to = joins ? out.dimensions - 1 : out.dimensions++;
    out.sizes[to] = (joins ? out.sizes[to] : 1) * shape.sizes[i];
    for (int k = 0; k < operands; ++k) out.strides[k][to] = shape.strides[k][i];
  }
  if (out.dimensions == 0) {
    out.dimensions = 1;
    out.sizes[0] = 1;
    for (int k = 0; k < operands; ++k) out.strides[k][0] = 1;
  }
  return out;
}

// Walks the first `dimensions` dimensions of a shape in row-major order and keeps each operand's
// offset.
template <int operands>
class StridedWalk {
 public:
  StridedWalk(const StridedShape<operands>& shape, int dimensions, std::int64_t at)
      : shape_(shape), dimensions_(dimensions) {
    for (int i = dimensions - 1; i >= 0; --i) {
      position_[i] = at % shape.sizes[i];
      at /= shape.sizes[i];
      for (int k = 0; k < operands; ++k) offset_[k] += position_[i] * shape.strides[k][i];
    }
  }
  [[nodiscard]] std::int64_t offset(int operand) const { return offset_[operand]; }
  void next() {
    for (int i = dimensions_ - 1; i >= 0; --i) {
      for (int k = 0; k < operands; ++k) offset_[k] += shape_.strides[k][i];
      if (++position_[i] < shape_.sizes[i]) return;
      for (int k = 0; k < operands; ++k) offset_[k] -= shape_.sizes[i] * shape_.strides[k][i];
      position_[i] = 0;
    }
  }

 private:
  const StridedShape<operands>& shape_;
  int dimensions_;
  std::int64_t position_[most_dimensions] = {};
  std::int64_t offset_[operands] = {};
};

// out[o] = in[i] for every element of the shape: operand 0 is `in`, operand 1 is `out`, whose
// strides are positive, descend and address no element twice. The two do not overlap. Any dtype;
// the bits are copied. Bytes: 2 * elements * size, less what repeats.
struct StridedCopy {
  const void* in;
  void* out;
  StridedShape<2> shape;
  DType dtype;
};

// The copy in terms of the widest elements, up to `widest` bytes, that its shape and its addresses
// allow.
struct WidenedCopy {
  StridedShape<2> shape;  // merged
  std::size_t element;    // bytes
};
inline WidenedCopy widened(const StridedCopy& copy, std::size_t widest) {
  WidenedCopy wide{merged(copy.shape), size_of(copy.dtype)};
  StridedShape<2>& shape = wide.shape;
  const int inner = shape.dimensions - 1;
  const auto addresses =
      reinterpret_cast<std::uintptr_t>(copy.in) | reinterpret_cast<std::uintptr_t>(copy.out);
  const auto halves = [&] {
    if (shape.strides[0][inner] != 1 || shape.strides[1][inner] != 1) return false;
    std::int64_t odd = shape.sizes[inner];
    for (int i = 0; i < inner; ++i) odd |= shape.strides[0][i] | shape.strides[1][i];
    return odd % 2 == 0 && addresses % (2 * wide.element) == 0;
  };
  while (2 * wide.element <= widest && halves()) {
    wide.element *= 2;
    shape.sizes[inner] /= 2;
    for (int i = 0; i < inner; ++i) {
      shape.strides[0][i] /= 2;
      shape.strides[1][i] /= 2;
    }
  }
  wide.shape = merged(shape);  // an inner dimension of one wide element is gone
  return wide;
}

}  // namespace tessera::kernels
