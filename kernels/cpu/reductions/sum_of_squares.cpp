// Sums of squares that no partition of the data can change: fp64 sums of 32 elements, added
// exactly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/sum_of_squares.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "base/error.h"
#include "base/parallel.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/reductions/exact_sum.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kBlock = 32;

// Eight columns of fp64 on every instruction set: column c sums elements c, c+8, c+16 and c+24 of a
// block. The columns meet in halves (c with c+4, then c+2, then c+1).
constexpr std::size_t kColumns = 8;
using ColumnTag = hn::ScalableTag<double>;
static_assert(hn::MaxLanes(ColumnTag()) <= kColumns);

template <class D>
HWY_INLINE double SumInHalves(D d, hn::Vec<D> value) {
  if constexpr (hn::MaxLanes(d) == 1) {
    return hn::GetLane(value);
  } else {
    const hn::Half<D> half;
    return SumInHalves(half, hn::Add(hn::LowerHalf(half, value), hn::UpperHalf(half, value)));
  }
}

// The sum over a block; `square(i)` gives the squares of a vector of elements from i on.
template <class Square>
HWY_INLINE double BlockSum(Square&& square) {
  constexpr std::size_t kLanes = hn::MaxLanes(ColumnTag());
  hn::Vec<ColumnTag> columns[kColumns / kLanes];
  for (std::size_t c = 0; c < kColumns; c += kLanes) {
    columns[c / kLanes] = hn::Add(hn::Add(square(c), square(c + kColumns)),
                                  hn::Add(square(c + 2 * kColumns), square(c + 3 * kColumns)));
  }
  for (std::size_t count = kColumns / kLanes / 2; count > 0; count /= 2) {
    for (std::size_t c = 0; c < count; ++c) columns[c] = hn::Add(columns[c], columns[c + count]);
  }
  return SumInHalves(ColumnTag(), columns[0]);
}

HWY_INLINE double SumOfBlock(const double* x, double scale) {
  const ColumnTag d;
  const auto factor = hn::Set(d, scale);
  return BlockSum([&](std::size_t i) HWY_ATTR {
    const auto value = hn::Mul(hn::LoadU(d, x + i), factor);
    return hn::Mul(value, value);
  });
}

// The squares of scaled fp32 are exact in fp64.
HWY_INLINE double SumOfBlock(const float* x, float scale) {
  const ColumnTag d;
  const hn::Rebind<float, ColumnTag> narrow;
  const auto factor = hn::Set(narrow, scale);
  return BlockSum([&](std::size_t i) HWY_ATTR {
    const auto value = hn::PromoteTo(d, hn::Mul(hn::LoadU(narrow, x + i), factor));
    return hn::Mul(value, value);
  });
}

template <class T>
HWY_INLINE double SumOfBlock(const T* x, float scale) {
  HWY_ALIGN float wide[kBlock];
  const FloatTag d;
  for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) hn::Store(LoadVector(x + i), d, wide + i);
  return SumOfBlock(wide, scale);
}

// Bytes between the summed data and the prefetched data: enough for the pauses in which block sums
// are added.
constexpr std::int64_t kAhead = 2048;

template <class T>
HWY_NOINLINE void BlockSumsTyped(const SumOfSquares& a, std::int64_t first, std::int64_t last,
                                 double* sums) {
  const T* x = static_cast<const T*>(a.x);
  const Compute<T> scale = a.scale;
  std::int64_t i = first;
  for (; i + kBlock <= last; i += kBlock) {
    for (std::size_t byte = 0; byte < kBlock * sizeof(T); byte += 64) {
      hwy::Prefetch(reinterpret_cast<const char*>(x + i) + kAhead + byte);
    }
    *sums++ = SumOfBlock(x + i, scale);
  }
  if (i < last) {
    T block[kBlock] = {};
    std::copy(x + i, x + last, block);
    *sums = SumOfBlock(block, scale);
  }
}

// The sums of the blocks of elements [first, last).
void BlockSums(const SumOfSquares& a, std::int64_t first, std::int64_t last, double* sums) {
  cpu::for_floating(a.dtype, "sum_of_squares", [&](auto tag) {
    BlockSumsTyped<typename decltype(tag)::type>(a, first, last, sums);
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(BlockSums);

constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kTile = 64 * kBlock;  // its block sums stay in the first-level cache

void add_squares(const SumOfSquares& a, std::int64_t first, std::int64_t last, ExactSum& sum) {
  double sums[kTile / kBlock];
  for (; first < last; first += kTile) {
    const std::int64_t count = std::min(kTile, last - first);
    HWY_DYNAMIC_DISPATCH(BlockSums)(a, first, first + count, sums);
    detail::add_many(sum, sums, (count + kBlock - 1) / kBlock);
  }
}

}  // namespace

void cpu::sum_of_squares(const SumOfSquares& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "sum_of_squares: {} is not a floating type",
                  name_of(a.dtype));
  TESSERA_REQUIRE(a.sum != nullptr, "sum_of_squares: no accumulator was given");
  constexpr std::int64_t kGrain = 1 << 15;  // a multiple of the block
  std::mutex mutex;
  parallel_for(0, a.n, kGrain, [&](std::int64_t first, std::int64_t last) {
    ExactSum part;
    add_squares(a, first, last, part);
    const std::lock_guard lock(mutex);
    a.sum->add(part);  // exact, so the order in which threads arrive does not matter
  });
  a.sum->normalize();
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
