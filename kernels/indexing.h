// Reads and sums at positions that a tensor of ids or the windows of a convolution give, and the
// order of sorted rows.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// The ids of Gather and ScatterAdd: int32 or int64, [outer, length, inner], or [length] for all if
// `shared`. An id outside [0, entries) is an Error(data) with the position in the ids and the id.
struct AxisIds {
  const void* ids;
  DType dtype;
  std::int64_t outer, entries, length, inner;
  bool shared = false;

  [[nodiscard]] std::int64_t count() const { return shared ? length : outer * length * inner; }
};

// out[o,l,i] = x[o, id(o,l,i), i]. Any dtype; the bits are copied.
struct Gather {
  AxisIds at;
  const void* x;  // [outer, entries, inner]
  void* out;      // [outer, length, inner]
  DType dtype;
};

// out[o, id(o,l,i), i] += x[o,l,i] in ascending l, in fp32 (fp64 for fp64), rounded once. One
// thread of a GPU adds a whole column (o, i), so that sums have a fixed order: it is slow if there
// are few columns.
struct ScatterAdd {
  AxisIds at;
  const void* x;  // [outer, length, inner], floating
  void* out;      // [outer, entries, inner]
  DType dtype;
};

// order[r,j] = the position in row r of the element that is in place j after a stable sort. NaN
// counts as the largest number, and -0 equals 0.
struct SortOrder {
  const void* x;        // [rows, length], floating; length < 2^31
  std::int64_t* order;  // [rows, length]
  std::int64_t rows, length;
  DType dtype;
  bool descending = false;
};

// Windows of `kernel` elements over planes of `size`, {rows, columns}. Window (y, x) of out[0] *
// out[1] reads element (y * stride[0] + a * dilation[0] - padding[0], likewise in x) as its element
// (a, b); elements outside of the plane are 0. All numbers except the padding are at least 1.
struct WindowShape {
  std::int64_t planes;
  std::int64_t size[2];
  std::int64_t kernel[2];
  std::int64_t stride[2];
  std::int64_t padding[2];
  std::int64_t dilation[2];
  std::int64_t out[2];

  [[nodiscard]] std::int64_t plane() const { return size[0] * size[1]; }
  [[nodiscard]] std::int64_t windows() const { return out[0] * out[1]; }
  [[nodiscard]] std::int64_t elements() const { return planes * plane(); }
  // The elements of all windows, [planes, kernel[0], kernel[1], out[0], out[1]].
  [[nodiscard]] std::int64_t columns() const { return planes * kernel[0] * kernel[1] * windows(); }
};

// columns[p, a, b, y, x] = element (a, b) of window (y, x) of plane p. Floating dtypes; the bits
// are copied.
struct Unfold {
  WindowShape shape;
  const void* x;  // [planes, size[0], size[1]]
  void* columns;
  DType dtype;
};

// out[p, i, j] (+)= the sum of the elements of `columns` that read (i, j), in ascending (a, b), in
// fp32 (fp64 for fp64), rounded once.
struct Fold {
  WindowShape shape;
  const void* columns;
  void* out;  // [planes, size[0], size[1]]
  DType dtype;
  bool accumulate = false;
};

}  // namespace tessera::kernels
