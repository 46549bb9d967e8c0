// Matrix products that are too small for a library: both operands are in the caches, and the
// result's columns are padded to whole vectors. Included by kernels once per instruction set, after
// simd-inl.h.
#if defined(TESSERA_KERNELS_CPU_SMALL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_SMALL_PRODUCT_INL_H_
#undef TESSERA_KERNELS_CPU_SMALL_PRODUCT_INL_H_
#else
#define TESSERA_KERNELS_CPU_SMALL_PRODUCT_INL_H_
#endif

#include <cstdint>

#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// c[i, j] (+)= sum over k of a[i, k] * b[k, j], in ascending k. Each element of c is one chain of
// multiplications and additions, so only k affects its bits.
template <class C>
struct SmallProduct {
  const C* a;
  std::int64_t a_row, a_column;  // elements between rows and between columns
  const C* b;
  std::int64_t b_row;
  C* c;
  std::int64_t c_row;
  std::int64_t rows, columns, depth;  // columns: a multiple of the vector's lanes
  bool accumulate = false;
};

template <class C, int kRows, int kVectors>
HWY_INLINE void SmallProductBlock(const SmallProduct<C>& p, std::int64_t row, std::int64_t column) {
  const Tag<C> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const C* const a = p.a + row * p.a_row;
  const C* b = p.b + column;
  C* const c = p.c + row * p.c_row + column;
  Vec<C> sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = p.accumulate ? hn::LoadU(d, c + i * p.c_row + j * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < p.depth; ++k, b += p.b_row) {
    Vec<C> right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = hn::LoadU(d, b + j * lanes);
    for (int i = 0; i < kRows; ++i) {
      const auto left = hn::Set(d, a[i * p.a_row + k * p.a_column]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::MulAdd(left, right[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sums[i][j], d, c + i * p.c_row + j * lanes);
  }
}

template <class C, int kVectors>
HWY_INLINE void SmallProductColumns(const SmallProduct<C>& p, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + 6 <= p.rows; row += 6) SmallProductBlock<C, 6, kVectors>(p, row, column);
  switch (p.rows - row) {
    case 5:
      return SmallProductBlock<C, 5, kVectors>(p, row, column);
    case 4:
      return SmallProductBlock<C, 4, kVectors>(p, row, column);
    case 3:
      return SmallProductBlock<C, 3, kVectors>(p, row, column);
    case 2:
      return SmallProductBlock<C, 2, kVectors>(p, row, column);
    case 1:
      return SmallProductBlock<C, 1, kVectors>(p, row, column);
    default:
      return;
  }
}

template <class C>
HWY_NOINLINE void Multiply(const SmallProduct<C>& p) {
  const auto lanes = static_cast<std::int64_t>(LaneCount<C>());
  std::int64_t column = 0;
  for (; column + 2 * lanes <= p.columns; column += 2 * lanes) SmallProductColumns<C, 2>(p, column);
  if (column < p.columns) SmallProductColumns<C, 1>(p, column);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
