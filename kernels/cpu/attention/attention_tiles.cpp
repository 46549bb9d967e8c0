// The softmax of a tile of attention scores and its gradient, vectorised.
#include "kernels/cpu/attention/attention_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_tiles.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/simd/philox-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

using cpu::AttentionTile;
using cpu::RowStatistics;

template <class C>
inline constexpr C kInfinity = std::numeric_limits<C>::infinity();

HWY_INLINE std::int64_t VisibleColumns(const AttentionTile& tile, std::int64_t row) {
  if (!tile.causal) return tile.columns;
  return std::clamp<std::int64_t>(tile.visible + row, 0, tile.columns);
}

// The columns before the first that a row sees.
HWY_INLINE std::int64_t HiddenColumns(const AttentionTile& tile, std::int64_t row,
                                      std::int64_t visible) {
  if (tile.bounds == nullptr) return 0;
  return std::clamp<std::int64_t>(tile.bounds[row] - tile.first_key, 0, visible);
}

HWY_INLINE void FetchUpcoming(const cpu::UpcomingRows& upcoming, std::int64_t row) {
  for (int i = 0; i < upcoming.tensors; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::byte* const from = upcoming.first[at] + row * upcoming.row_bytes[at];
    for (std::int64_t line = 0; line < upcoming.head_bytes[at]; line += 64)
      hwy::Prefetch(from + line);
  }
}

// `value` where the draw keeps it, zero elsewhere.
HWY_INLINE FloatVec Keep(FloatVec value, const std::uint32_t* draws, std::uint32_t threshold) {
  const BitsTag d;
  const auto dropped = hn::Lt(hn::LoadU(d, draws), hn::Set(d, threshold));
  return hn::IfThenZeroElse(hn::RebindMask(FloatTag(), dropped), value);
}
HWY_INLINE Vec<double> Keep(Vec<double> value, const std::uint32_t* draws,
                            std::uint32_t threshold) {
  const hn::RebindToUnsigned<Tag<double>> d;
  const hn::Rebind<std::uint32_t, Tag<double>> narrow;
  const auto dropped = hn::Lt(hn::PromoteTo(d, hn::LoadU(narrow, draws)), hn::Set(d, threshold));
  return hn::IfThenZeroElse(hn::RebindMask(Tag<double>(), dropped), value);
}

// score * scale, under a cap, (+ biases) of row `r` from column `first` on.
template <class C, bool kBias, bool kCap>
struct ScaledScores {
  const C* scores;
  const C* bias;       // of the columns
  const C* pair_bias;  // of the row; with kBias one of the two may be null
  Vec<C> scale, cap, inverse_cap;

  HWY_INLINE ScaledScores(const AttentionTile& tile, const C* row, std::int64_t r,
                          std::int64_t first)
      : scores(row + first),
        bias(kBias && tile.bias != nullptr ? static_cast<const C*>(tile.bias) + first : nullptr),
        pair_bias(kBias && tile.pair_bias != nullptr
                      ? static_cast<const C*>(tile.pair_bias) + r * tile.pair_bias_stride + first
                      : nullptr),
        scale(hn::Set(Tag<C>(), static_cast<C>(tile.scale))),
        cap(hn::Set(Tag<C>(), static_cast<C>(tile.soft_cap))),
        inverse_cap(hn::Set(Tag<C>(), static_cast<C>(kCap ? 1 / tile.soft_cap : 0))) {}

  template <class Access>
  HWY_INLINE Vec<C> LoadWithoutBias(std::int64_t i, Access access) const {
    const auto scaled = hn::Mul(access.Load(scores + i), scale);
    if constexpr (kCap) return hn::Mul(cap, Tanh(hn::Mul(scaled, inverse_cap)));
    return scaled;
  }
  template <class Access>
  HWY_INLINE Vec<C> AddBias(Vec<C> score, std::int64_t i, Access access) const {
    if constexpr (kBias) {
      if (bias != nullptr) score = hn::Add(score, access.Load(bias + i));
      if (pair_bias != nullptr) score = hn::Add(score, access.Load(pair_bias + i));
    }
    return score;
  }
  template <class Access>
  HWY_INLINE Vec<C> Load(std::int64_t i, Access access) const {
    return AddBias(LoadWithoutBias(i, access), i, access);
  }
  // The derivative by the score before the scale, given the score without bias.
  HWY_INLINE Vec<C> Slope(Vec<C> score) const {
    if constexpr (!kCap) return scale;
    const auto ratio = hn::Mul(score, inverse_cap);
    return hn::Mul(scale, hn::NegMulAdd(ratio, ratio, hn::Set(Tag<C>(), C{1})));
  }
};

template <class C, class Scores>
HWY_INLINE C LargestScore(const Scores& row, std::int64_t visible) {
  const Tag<C> d;
  const auto lowest = hn::Set(d, -kInfinity<C>);
  auto largest = lowest;
  ForEach<C>(visible, [&](std::int64_t i, auto access) HWY_ATTR {
    largest = hn::Max(largest, access.Keep(row.Load(i, access), lowest));
  });
  return LaneMax(largest);
}

template <class C, class Scores>
HWY_INLINE C ScoreTotal(const Scores& row, std::int64_t visible) {
  auto total = hn::Zero(Tag<C>());
  ForEach<C>(visible, [&](std::int64_t i, auto access) HWY_ATTR {
    total = hn::Add(total, access.Keep(row.Load(i, access), hn::Zero(Tag<C>())));
  });
  return LaneSum(total);
}

template <class E>
HWY_INLINE void Zero(E* out, std::int64_t first, std::int64_t last) {
  const auto zero = hn::Zero(Tag<E>());
  ForEach<E>(last - first,
             [&](std::int64_t i, auto access) HWY_ATTR { access.Store(zero, out + first + i); });
}

template <class E, bool kBias, bool kDropout, bool kCap>
HWY_NOINLINE void SoftmaxRows(const AttentionTile& tile, const Compute<E>* scores,
                              const RowStatistics& statistics, E* out) {
  using C = Compute<E>;
  const Tag<C> d;
  auto* const maximum = static_cast<C*>(statistics.maximum);
  auto* const sum = static_cast<C*>(statistics.sum);
  auto* const factor = static_cast<C*>(statistics.factor);
  PhiloxWords<kDropout ? cpu::kMostTileColumns : 1> words;
  for (std::int64_t r = 0; r < tile.rows; ++r, scores += tile.columns, out += tile.columns) {
    const std::int64_t visible = VisibleColumns(tile, r);
    const std::int64_t hidden = HiddenColumns(tile, r, visible), seen = visible - hidden;
    FetchUpcoming(tile.upcoming, r);
    const ScaledScores<C, kBias, kCap> row(tile, scores, r, hidden);
    const C before = maximum[r];
    const C now = std::max(before, LargestScore<C>(row, seen));
    if (now == -kInfinity<C>) {
      factor[r] = 1;
      // No key is visible, unless the largest score hid NaNs, which must reach the output.
      if (std::isnan(ScoreTotal<C>(row, seen))) sum[r] = std::numeric_limits<C>::quiet_NaN();
      Zero(out, 0, tile.columns);
      continue;
    }
    const auto shift = hn::Set(d, now);
    const std::uint32_t* draws = nullptr;
    if constexpr (kDropout) {
      draws = words.Generate(tile.key, tile.first_draw + r * tile.draw_stride + hidden, seen);
    }
    auto total = hn::Zero(d);
    ForEach<C>(seen, [&](std::int64_t i, auto access) HWY_ATTR {
      auto value = Exp(hn::Sub(row.Load(i, access), shift));
      total = hn::Add(total, access.Keep(value, hn::Zero(d)));
      if constexpr (kDropout) value = Keep(value, draws + i, tile.dropout_threshold);
      access.Store(value, out + hidden + i);
    });
    Zero(out, 0, hidden);
    Zero(out, visible, tile.columns);
    factor[r] = std::exp(before - now);
    maximum[r] = now;
    sum[r] = sum[r] * factor[r] + LaneSum(total);
  }
}

template <class E, bool kBias, bool kDropout, bool kCap>
HWY_NOINLINE void GradientRows(const AttentionTile& tile, const Compute<E>* scores,
                               const Compute<E>* gradients, const Compute<E>* log_sum_exp,
                               const Compute<E>* delta, E* probabilities, E* score_gradients) {
  using C = Compute<E>;
  const Tag<C> d;
  const auto kept_scale = hn::Set(d, static_cast<C>(tile.kept_scale));
  PhiloxWords<kDropout ? cpu::kMostTileColumns : 1> words;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t visible = VisibleColumns(tile, r);
    const std::int64_t hidden = HiddenColumns(tile, r, visible), seen = visible - hidden;
    FetchUpcoming(tile.upcoming, r);
    const std::int64_t first = r * tile.columns, offset = first + hidden;
    const ScaledScores<C, kBias, kCap> row(tile, scores + first, r, hidden);
    const auto shift = hn::Set(d, log_sum_exp[r]);
    const auto mean = hn::Set(d, delta[r]);
    const std::uint32_t* draws = nullptr;
    if constexpr (kDropout) {
      draws = words.Generate(tile.key, tile.first_draw + r * tile.draw_stride + hidden, seen);
    }
    ForEach<C>(seen, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto score = row.LoadWithoutBias(i, access);
      const auto probability = Exp(hn::Sub(row.AddBias(score, i, access), shift));
      auto gradient = access.Load(gradients + offset + i);
      auto dropped = probability;
      if constexpr (kDropout) {
        gradient = Keep(hn::Mul(gradient, kept_scale), draws + i, tile.dropout_threshold);
        dropped = Keep(hn::Mul(probability, kept_scale), draws + i, tile.dropout_threshold);
      }
      access.Store(dropped, probabilities + offset + i);
      access.Store(hn::Mul(hn::Mul(probability, row.Slope(score)), hn::Sub(gradient, mean)),
                   score_gradients + offset + i);
    });
    Zero(probabilities + first, 0, hidden);
    Zero(score_gradients + first, 0, hidden);
    Zero(probabilities + first, visible, tile.columns);
    Zero(score_gradients + first, visible, tile.columns);
  }
}

// The gradients of a tile's biased scores, added to `sums`.
template <class C, bool kDropout, bool kCap>
HWY_NOINLINE void BiasGradientRows(const AttentionTile& tile, const C* scores, const C* gradients,
                                   const C* log_sum_exp, const C* delta, C* sums) {
  const Tag<C> d;
  const auto kept_scale = hn::Set(d, static_cast<C>(tile.kept_scale));
  PhiloxWords<kDropout ? cpu::kMostTileColumns : 1> words;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t visible = VisibleColumns(tile, r);
    const std::int64_t hidden = HiddenColumns(tile, r, visible), seen = visible - hidden;
    const C* const gradient_row = gradients + r * tile.columns + hidden;
    C* const sum_row = sums + r * tile.pair_bias_stride + hidden;
    const ScaledScores<C, true, kCap> row(tile, scores + r * tile.columns, r, hidden);
    const auto shift = hn::Set(d, log_sum_exp[r]);
    const auto mean = hn::Set(d, delta[r]);
    const std::uint32_t* draws = nullptr;
    if constexpr (kDropout) {
      draws = words.Generate(tile.key, tile.first_draw + r * tile.draw_stride + hidden, seen);
    }
    ForEach<C>(seen, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto probability = Exp(hn::Sub(row.Load(i, access), shift));
      auto gradient = access.Load(gradient_row + i);
      if constexpr (kDropout) {
        gradient = Keep(hn::Mul(gradient, kept_scale), draws + i, tile.dropout_threshold);
      }
      const auto term = hn::Mul(probability, hn::Sub(gradient, mean));
      access.Store(hn::Add(access.Load(sum_row + i), term), sum_row + i);
    });
  }
}

// Calls body.template operator()<bias, dropout, cap>() with the tile's options.
template <class Body>
void ForTileOptions(const AttentionTile& tile, Body&& body) {
  const auto with = [](bool option, auto&& next) {
    option ? next(std::true_type{}) : next(std::false_type{});
  };
  with(tile.bias != nullptr || tile.pair_bias != nullptr, [&](auto bias) {
    with(tile.dropout_threshold != 0, [&](auto dropout) {
      with(tile.soft_cap > 0, [&](auto cap) {
        body.template
        operator()<decltype(bias)::value, decltype(dropout)::value, decltype(cap)::value>();
      });
    });
  });
}

template <class E>
void SoftmaxTile(const AttentionTile& tile, const void* scores, const RowStatistics& rows,
                 void* out) {
  ForTileOptions(tile, [&]<bool kBias, bool kDropout, bool kCap>() {
    SoftmaxRows<E, kBias, kDropout, kCap>(tile, static_cast<const Compute<E>*>(scores), rows,
                                          static_cast<E*>(out));
  });
}

template <class E>
void GradientTile(const AttentionTile& tile, const void* scores, const void* gradients,
                  const void* log_sum_exp, const void* delta, void* probabilities,
                  void* score_gradients) {
  using C = Compute<E>;
  ForTileOptions(tile, [&]<bool kBias, bool kDropout, bool kCap>() {
    GradientRows<E, kBias, kDropout, kCap>(
        tile, static_cast<const C*>(scores), static_cast<const C*>(gradients),
        static_cast<const C*>(log_sum_exp), static_cast<const C*>(delta),
        static_cast<E*>(probabilities), static_cast<E*>(score_gradients));
  });
}

template <class C>
void BiasGradientTile(const AttentionTile& tile, const void* scores, const void* gradients,
                      const void* log_sum_exp, const void* delta, void* sums) {
  const auto run = [&](auto kernel) {
    kernel(tile, static_cast<const C*>(scores), static_cast<const C*>(gradients),
           static_cast<const C*>(log_sum_exp), static_cast<const C*>(delta), static_cast<C*>(sums));
  };
  if (tile.dropout_threshold != 0) {
    tile.soft_cap > 0 ? run(BiasGradientRows<C, true, true>)
                      : run(BiasGradientRows<C, true, false>);
  } else {
    tile.soft_cap > 0 ? run(BiasGradientRows<C, false, true>)
                      : run(BiasGradientRows<C, false, false>);
  }
}

void Softmax(const AttentionTile& tile, DType operand, const void* scores,
             const RowStatistics& rows, void* out) {
  switch (operand) {
    case DType::bfloat16:
      return SoftmaxTile<BFloat16>(tile, scores, rows, out);
    case DType::float64:
      return SoftmaxTile<double>(tile, scores, rows, out);
    default:
      return SoftmaxTile<float>(tile, scores, rows, out);
  }
}

void Gradient(const AttentionTile& tile, DType operand, const void* scores, const void* gradients,
              const void* log_sum_exp, const void* delta, void* probabilities,
              void* score_gradients) {
  const auto run = [&](auto kernel) {
    kernel(tile, scores, gradients, log_sum_exp, delta, probabilities, score_gradients);
  };
  switch (operand) {
    case DType::bfloat16:
      return run(GradientTile<BFloat16>);
    case DType::float64:
      return run(GradientTile<double>);
    default:
      return run(GradientTile<float>);
  }
}

void BiasGradient(const AttentionTile& tile, DType operand, const void* scores,
                  const void* gradients, const void* log_sum_exp, const void* delta, void* sums) {
  if (operand == DType::float64) {
    BiasGradientTile<double>(tile, scores, gradients, log_sum_exp, delta, sums);
  } else {
    BiasGradientTile<float>(tile, scores, gradients, log_sum_exp, delta, sums);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(Softmax);
HWY_EXPORT(Gradient);
HWY_EXPORT(BiasGradient);
}  // namespace

namespace cpu {

void softmax_tile(const AttentionTile& tile, DType operand, const void* scores,
                  const RowStatistics& rows, void* probabilities) {
  TESSERA_REQUIRE(tile.columns <= kMostTileColumns, "softmax_tile: {} columns", tile.columns);
  HWY_DYNAMIC_DISPATCH(Softmax)(tile, operand, scores, rows, probabilities);
}

void softmax_gradient_tile(const AttentionTile& tile, DType operand, const void* scores,
                           const void* gradients, const void* log_sum_exp, const void* delta,
                           void* probabilities, void* score_gradients) {
  TESSERA_REQUIRE(tile.columns <= kMostTileColumns, "softmax_gradient_tile: {} columns",
                  tile.columns);
  HWY_DYNAMIC_DISPATCH(Gradient)
  (tile, operand, scores, gradients, log_sum_exp, delta, probabilities, score_gradients);
}

void add_bias_gradient_tile(const AttentionTile& tile, DType operand, const void* scores,
                            const void* gradients, const void* log_sum_exp, const void* delta,
                            void* sums) {
  TESSERA_REQUIRE(tile.columns <= kMostTileColumns, "add_bias_gradient_tile: {} columns",
                  tile.columns);
  HWY_DYNAMIC_DISPATCH(BiasGradient)
  (tile, operand, scores, gradients, log_sum_exp, delta, sums);
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif  // HWY_ONCE
