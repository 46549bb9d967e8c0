// Reads and sums at positions that a tensor of ids gives, and the order of sorted rows.
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

}  // namespace tessera::kernels
