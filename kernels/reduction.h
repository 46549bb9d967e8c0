// Reductions. The input is split into fixed chunks whose partial sums are combined in a fixed
// order, so neither the number of threads nor the vector width's tail changes a bit.
#pragma once

#include <array>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// out[i] (+)= sum over r of x[r,i]: bias gradients and the backward of broadcasting.
struct SumRows {
  const void* x;  // [rows, inner]
  void* out;      // [inner], same dtype; accumulated in fp32 (fp64 for fp64)
  std::int64_t rows, inner;
  DType dtype;
  bool accumulate = false;
};

// *out = scale * sum(x), a single element of the same dtype (fp32 partials, fp64 combination).
struct SumAll {
  const void* x;
  void* out;
  std::int64_t n;
  DType dtype;
  double scale = 1.0;
};

// An exact accumulator of non-negative doubles: integer limbs of 32 bits in int64 words. Sums of
// accumulators are associative, so no partition of the data can change the result. Limb i has
// weight 2^(32*i - bias); accumulators are added limb by limb.
struct ExactSum {
  static constexpr int limbs = 68;  // 2^-1088 .. 2^1088: every double and its carries
  std::array<std::int64_t, limbs> limb{};
  bool non_finite = false;  // an Inf or NaN was added
  void add(double value);
  void add(const ExactSum& other);
  // Brings every limb below 2^32 without changing the value. Up to 2^30 normalised sums may be
  // added limb by limb (an integer all-reduce) before the limbs must be normalised again; both
  // add()s do this themselves.
  void normalize();
  [[nodiscard]] double value() const;  // correctly rounded; NaN when non_finite
};

// Adds the squares of x to `sum`. Each aligned block of 32 elements is summed in fp64 in one fixed
// order, and the block sums are added exactly. x begins on a block boundary of the logical index
// space; a last partial block is padded with zeros. Shards split at multiples of 32 therefore give
// the bits of the whole. The sum is left normalised. `sum` is in the memory of the queue's device,
// like x (all zero bytes are the empty sum).
struct SumOfSquares {
  const void* x;
  std::int64_t n;
  DType dtype;
  float scale;  // applied to x in fp32 before squaring
  ExactSum* sum;
};

// out[i] (+)= scale * (tree sum over ranks of in[r][i]), partial sums in fp32 (fp64 for fp64). The
// tree: ranks in contiguous groups of `group`; inside a group a binary tree that splits at the
// largest power of two below the size; then the same tree over the groups. group == ranks gives the
// plain tree. `scale` is applied last.
struct ReduceRanks {
  const void* const* in;  // `ranks` pointers to n elements of in_dtype
  int ranks;
  int group;
  void* out;  // n elements of out_dtype (fp32, fp64, or in_dtype)
  std::int64_t n;
  DType in_dtype, out_dtype;
  float scale = 1.0f;
  bool accumulate = false;
};

}  // namespace tessera::kernels
