// Matrix products in double precision: a row of c is built from rows of b, vectorised along n.
#include "kernels/cpu/matmul/matmul_fp64.h"

#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/matmul_fp64.cpp"
#include "kernels/cpu/simd/simd_targets.h"
// After simd_targets.h.
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Columns of c that one pass over k keeps in registers: four vectors, or the rest.
template <int Vectors>
void ColumnsFp64(const Matmul& product, const double* b, std::int64_t ldb, std::int64_t row,
                 std::int64_t column, std::int64_t count) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const double* const a =
      static_cast<const double*>(product.a) + row * (product.transpose_a ? 1 : product.lda);
  const std::int64_t a_step = product.transpose_a ? product.lda : 1;
  const bool whole = count == Vectors * lanes;
  Vec<double> sums[Vectors];
  for (int v = 0; v < Vectors; ++v) sums[v] = hn::Zero(d);
  for (std::int64_t k = 0; k < product.k; ++k) {
    const auto factor = hn::Set(d, a[k * a_step]);
    const double* const from = b + k * ldb + column;
    for (int v = 0; v < Vectors; ++v) {
      const auto value =
          whole ? LoadVector(from + v * lanes) : LoadPartial(from, static_cast<std::size_t>(count));
      sums[v] = hn::MulAdd(factor, value, sums[v]);
    }
  }
  double* const c = static_cast<double*>(product.c) + row * product.ldc + column;
  const double* const bias =
      product.bias == nullptr ? nullptr : static_cast<const double*>(product.bias) + column;
  const auto finish = [&](Vec<double> sum, std::int64_t at, auto access) HWY_ATTR {
    sum = hn::Mul(sum, hn::Set(d, static_cast<double>(product.alpha)));
    if (product.accumulate) sum = hn::Add(sum, access.Load(c + at));
    if (bias != nullptr) sum = hn::Add(sum, access.Load(bias + at));
    access.Store(sum, c + at);
  };
  if (whole) {
    for (int v = 0; v < Vectors; ++v) finish(sums[v], v * lanes, WholeVector{});
  } else {
    finish(sums[0], 0, PartialVector{static_cast<std::size_t>(count)});
  }
}

}  // namespace

void RowsFp64(const Matmul& product, const double* b, std::int64_t ldb, std::int64_t first,
              std::int64_t last) {
  const auto lanes = static_cast<std::int64_t>(LaneCount<double>());
  for (std::int64_t row = first; row < last; ++row) {
    std::int64_t column = 0;
    for (; column + 4 * lanes <= product.n; column += 4 * lanes) {
      ColumnsFp64<4>(product, b, ldb, row, column, 4 * lanes);
    }
    for (; column < product.n; column += lanes) {
      ColumnsFp64<1>(product, b, ldb, row, column, std::min(lanes, product.n - column));
    }
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(RowsFp64);
}  // namespace

namespace cpu {

void matmul_fp64(const Matmul& product) {
  const auto* b = static_cast<const double*>(product.b);
  std::int64_t ldb = product.ldb;
  if (product.transpose_b) {
    static thread_local ScratchBuffer buffer;
    double* const straight = buffer.get<double>(product.k * product.n);
    for (std::int64_t column = 0; column < product.n; ++column) {
      for (std::int64_t k = 0; k < product.k; ++k) {
        straight[k * product.n + column] = b[column * product.ldb + k];
      }
    }
    b = straight;
    ldb = product.n;
  }
  parallel_for(0, product.m, 8, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(RowsFp64)(product, b, ldb, first, last);
  });
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif  // HWY_ONCE
