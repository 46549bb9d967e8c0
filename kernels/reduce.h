// Reductions and running sums over the middle of three dimensions.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// argmax and argmin give the first place of the result. NaN is the maximum and the minimum of
// everything.
enum class ReduceOp : std::uint8_t { sum, maximum, minimum, argmax, argmin };

// out[o,i] = op over r of x[o,r,i], in an order that depends on the sizes alone. A sum is in fp32
// (fp64 for fp64), and is multiplied by `scale` and rounded once; over nothing it is 0. The other
// operations need `reduced` > 0. Bytes: x once.
struct Reduce {
  ReduceOp op;
  const void* x;  // [outer, reduced, inner], floating
  void* out;      // [outer, inner] of `dtype`; int64 for argmax and argmin
  std::int64_t outer, reduced, inner;
  DType dtype;
  double scale = 1;
};

// out[o,j,i] = the sum of x[o,r,i] over r <= j, or r >= j if reverse, in fp64, and rounded once.
// out may be x. Bytes: x and out once.
struct CumulativeSum {
  const void* x;  // [outer, length, inner], floating
  void* out;
  std::int64_t outer, length, inner;
  DType dtype;
  bool reverse = false;
};

}  // namespace tessera::kernels
