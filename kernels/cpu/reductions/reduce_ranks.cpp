// The sum over ranks in a fixed binary tree: the inner loop of a reduce-scatter over shared memory.
// The tree is evaluated vector by vector in registers, so every input is read once and the output
// written once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/reduce_ranks.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "base/rank_tree.h"
#include "hwy/cache_control.h"
#include "kernels/registry.h"

#ifndef TESSERA_KERNELS_CPU_REDUCE_RANKS_ONCE_
#define TESSERA_KERNELS_CPU_REDUCE_RANKS_ONCE_
namespace tessera::kernels {
namespace {

// A tree over 2^31 ranks, with groups of any size, has fewer waiting sums than this.
constexpr int kMaxWaiting = 40;

}  // namespace
}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <int kLeaves, class In, class Access>
HWY_INLINE Vec<In> SubtreeSum(const void* const* in, std::int64_t i, Access access) {
  if constexpr (kLeaves == 1) {
    return access.Load(static_cast<const In*>(in[0]) + i);
  } else {
    return hn::Add(SubtreeSum<kLeaves / 2, In>(in, i, access),
                   SubtreeSum<kLeaves / 2, In>(in + kLeaves / 2, i, access));
  }
}

template <int kLeaves, int kVectors, class In, class Access>
HWY_INLINE void SubtreeSums(const void* const* in, std::int64_t i, Access access, Vec<In>* sums) {
  const auto lanes = static_cast<std::int64_t>(LaneCount<In>());
  for (int k = 0; k < kVectors; ++k) {
    sums[k] = SubtreeSum<kLeaves, In>(in, i + k * lanes, access);
  }
}

// The tree's value for kVectors neighbouring vectors from element i on.
template <int kVectors, class In, class Access>
HWY_INLINE void TreeSums(std::span<const TreeStep> steps, const void* const* in, std::int64_t i,
                         Access access, Vec<In>* sums) {
  const hn::ScalableTag<Compute<In>> d;
  HWY_ALIGN Compute<In> waiting[kMaxWaiting * kVectors * hn::MaxLanes(d)];
  Compute<In>* top = waiting;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t s = 0;; ++s) {
    const TreeStep& step = steps[s];
    switch (step.leaves) {
      case 1:
        SubtreeSums<1, kVectors, In>(in + step.first, i, access, sums);
        break;
      case 2:
        SubtreeSums<2, kVectors, In>(in + step.first, i, access, sums);
        break;
      case 4:
        SubtreeSums<4, kVectors, In>(in + step.first, i, access, sums);
        break;
      default:
        SubtreeSums<8, kVectors, In>(in + step.first, i, access, sums);
        break;
    }
    for (int m = 0; m < step.merges; ++m) {
      top -= kVectors * lanes;
      for (int k = 0; k < kVectors; ++k) sums[k] = hn::Add(hn::Load(d, top + k * lanes), sums[k]);
    }
    if (s + 1 == steps.size()) return;
    for (int k = 0; k < kVectors; ++k) hn::Store(sums[k], d, top + k * lanes);
    top += kVectors * lanes;
  }
}

// Sums from element i on, written from `out` on.
template <int kVectors, class In, class Out, bool kStream, class Access>
HWY_INLINE void ReduceVectors(const ReduceRanks& a, std::span<const TreeStep> steps, Out* out,
                              std::int64_t i, Access access) {
  const hn::ScalableTag<Compute<In>> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, static_cast<Compute<In>>(a.scale));
  Vec<In> sums[kVectors];
  TreeSums<kVectors, In>(steps, a.in, i, access, sums);
  for (int k = 0; k < kVectors; ++k) {
    Out* to = out + k * lanes;
    auto sum = hn::Mul(sums[k], scale);
    if (a.accumulate) sum = hn::Add(access.Load(to), sum);
    if constexpr (kStream && Access::whole && std::is_same_v<Out, Compute<In>>) {
      hn::Stream(sum, d, to);
    } else {
      access.Store(sum, to);
    }
  }
}

// Reduces elements [first, last) to `out`, if sums and output have the same compute type. With
// kStream `out` is aligned to a vector.
template <class In, class Out, bool kStream>
HWY_NOINLINE void ReduceRange(const ReduceRanks& a, std::span<const TreeStep> steps, Out* out,
                              std::int64_t first, std::int64_t last) {
  constexpr int kVectors = 4;
  const auto lanes = static_cast<std::int64_t>(LaneCount<In>());
  std::int64_t i = first;
  for (; i + kVectors * lanes <= last; i += kVectors * lanes) {
    ReduceVectors<kVectors, In, Out, kStream>(a, steps, out + (i - first), i, WholeVector{});
  }
  for (; i + lanes <= last; i += lanes) {
    ReduceVectors<1, In, Out, kStream>(a, steps, out + (i - first), i, WholeVector{});
  }
  if (i < last) {
    const PartialVector rest{static_cast<std::size_t>(last - i)};
    ReduceVectors<1, In, Out, false>(a, steps, out + (i - first), i, rest);
  }
  if constexpr (kStream) hwy::FlushStream();
}

// Stores that bypass the caches need not read the overwritten lines. This pays if the output would
// not stay in a cache anyway: measured 1.45 times as fast at 64 MiB, but up to a quarter slower at
// 16 MiB and less.
constexpr std::int64_t kStreamBytes = std::int64_t{32} << 20;

template <class In, class Out>
void ReduceSameCompute(const ReduceRanks& a, std::span<const TreeStep> steps, std::int64_t first,
                       std::int64_t last) {
  Out* out = static_cast<Out*>(a.out) + first;
  if constexpr (std::is_same_v<Out, Compute<In>>) {
    const auto vector_bytes = LaneCount<In>() * sizeof(Out);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(out) % vector_bytes;
    const bool large = a.n * static_cast<std::int64_t>(sizeof(Out)) >= kStreamBytes;
    if (large && !a.accumulate && misaligned % sizeof(Out) == 0) {
      const auto lead = misaligned == 0 ? 0 : (vector_bytes - misaligned) / sizeof(Out);
      const std::int64_t aligned = std::min(last, first + static_cast<std::int64_t>(lead));
      ReduceRange<In, Out, false>(a, steps, out, first, aligned);
      ReduceRange<In, Out, true>(a, steps, out + (aligned - first), aligned, last);
      return;
    }
  }
  ReduceRange<In, Out, false>(a, steps, out, first, last);
}

// fp32 sums into fp64 or fp64 sums into fp32, through a small buffer of sums.
template <class In, class Out>
void ReduceAcross(const ReduceRanks& a, std::span<const TreeStep> steps, std::int64_t first,
                  std::int64_t last) {
  using Sum = Compute<In>;
  constexpr std::int64_t kTile = 512;
  Sum sums[kTile];
  Out* out = static_cast<Out*>(a.out);
  for (std::int64_t i = first; i < last; i += kTile) {
    const std::int64_t count = std::min(kTile, last - i);
    ReduceRanks tile = a;
    tile.accumulate = false;
    ReduceRange<In, Sum, false>(tile, steps, sums, i, i + count);
    for (std::int64_t j = 0; j < count; ++j) {
      const auto sum = static_cast<double>(sums[j]);
      out[i + j] = static_cast<Out>(a.accumulate ? static_cast<double>(out[i + j]) + sum : sum);
    }
  }
}

template <class In>
void ReduceInput(const ReduceRanks& a, std::span<const TreeStep> steps, std::int64_t first,
                 std::int64_t last) {
  using Other = std::conditional_t<std::is_same_v<In, double>, float, double>;
  if (a.out_dtype == dtype_of<Other>) {
    ReduceAcross<In, Other>(a, steps, first, last);
  } else if (a.out_dtype == dtype_of<In>) {
    ReduceSameCompute<In, In>(a, steps, first, last);
  } else {
    ReduceSameCompute<In, Compute<In>>(a, steps, first, last);
  }
}

void ReduceRanksRange(const ReduceRanks& a, std::span<const TreeStep> steps, std::int64_t first,
                      std::int64_t last) {
  switch (a.in_dtype) {
    case DType::float32:
      ReduceInput<float>(a, steps, first, last);
      break;
    case DType::bfloat16:
      ReduceInput<BFloat16>(a, steps, first, last);
      break;
    case DType::float16:
      ReduceInput<Float16>(a, steps, first, last);
      break;
    default:
      ReduceInput<double>(a, steps, first, last);
      break;
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(ReduceRanksRange);

}  // namespace

void cpu::reduce_ranks(const ReduceRanks& a, Queue) {
  TESSERA_REQUIRE(a.ranks >= 1 && a.group >= 1,
                  "reduce_ranks: {} ranks in groups of {}; both must be at least 1", a.ranks,
                  a.group);
  TESSERA_REQUIRE(
      is_floating(a.in_dtype) && (a.out_dtype == DType::float32 || a.out_dtype == DType::float64 ||
                                  a.out_dtype == a.in_dtype),
      "reduce_ranks: input {} and output {}; the input must be floating, the output "
      "float32, float64 or the input's type",
      name_of(a.in_dtype), name_of(a.out_dtype));
  const std::vector<TreeStep> steps = tree_steps(a.ranks, a.group);
  constexpr std::int64_t kGrain = 1 << 15;
  parallel_for(0, a.n, kGrain, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(ReduceRanksRange)(a, steps, first, last);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
