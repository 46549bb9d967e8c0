// q6_k: 256 elements in 16 groups of 16. A group has an int8 factor of the block's scale. The
// search is q4_k's without offsets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/blocks/q6_k.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <array>

#include "kernels/blocks.h"
#include "kernels/cpu/blocks/blocks-inl.h"
#include "kernels/cpu/blocks/scales.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

using namespace blocks;

constexpr std::size_t q6_groups = 16;
constexpr std::size_t q6_group = 16;  // elements
constexpr std::size_t q6_k_bytes = 128 + 64 + 16 + 2;
constexpr float least_q6 = -32.0f;
constexpr float most_q6 = 31.0f;
constexpr int q6_fits = 2;  // passes of rounding and fitting

// One pass, as FitAffine of q4_k.
void FitScales(const float* x, float* scales, float* errors) {
  const Floats d;
  for (std::size_t c = 0; c < candidates; c += Step()) {
    const auto inverse = Inverse(hn::Load(d, scales + c));
    auto sum_qq = hn::Zero(d);
    auto sum_xq = hn::Zero(d);
    for (std::size_t i = 0; i < q6_group; ++i) {
      const auto value = hn::Set(d, x[i]);
      const auto q = RoundTo(hn::Mul(value, inverse), least_q6, most_q6);
      sum_qq = hn::Add(sum_qq, hn::Mul(q, q));
      sum_xq = hn::Add(sum_xq, hn::Mul(value, q));
    }
    const auto scale = hn::Mul(sum_xq, Inverse(sum_qq));
    hn::Store(scale, d, scales + c);
    // The error, without the sum of squares, which all candidates have.
    hn::Store(hn::Neg(hn::Mul(scale, sum_xq)), d, errors + c);
  }
}

// The scale of a group before it is rounded, of either sign.
float FitQ6Group(const float* values) {
  float extreme = 0.0f;
  for (std::size_t i = 0; i < q6_group; ++i) {
    if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
  }
  if (!(std::fabs(extreme) > smallest_range)) return 0.0f;
  Candidates fits;
  for (std::size_t c = 0; c < candidates; ++c) {
    // The extreme becomes about -32 in 11 candidates, and about 31 in 5.
    const auto step = static_cast<float>(c);
    fits.scales[c] = c < 11 ? extreme / (-33.0f + 0.25f * step) : extreme / (28.5f + 0.25f * step);
  }
  for (int pass = 0; pass < q6_fits; ++pass) FitScales(values, fits.scales, fits.errors);
  return fits.scales[fits.Best()];
}

// The factor near the rounded one whose integers have the least error.
int ChooseFactor(const float* values, float scale, int rounded) {
  const Floats d;
  Candidates tried;
  const auto factor_of = [&](std::size_t c) {
    return std::clamp(rounded + static_cast<int>(c) - 8, -128, 127);
  };
  for (std::size_t c = 0; c < candidates; ++c) {
    tried.scales[c] = scale * static_cast<float>(factor_of(c));
  }
  for (std::size_t c = 0; c < candidates; c += Step()) {
    const auto by = hn::Load(d, tried.scales + c);
    const auto inverse = Inverse(by);
    auto error = hn::Zero(d);
    for (std::size_t i = 0; i < q6_group; ++i) {
      const auto value = hn::Set(d, values[i]);
      const auto q = RoundTo(hn::Mul(value, inverse), least_q6, most_q6);
      const auto difference = hn::Sub(hn::Mul(by, q), value);
      error = hn::Add(error, hn::Mul(difference, difference));
    }
    hn::Store(error, d, tried.errors + c);
  }
  return factor_of(tried.Best());
}

// Elements l, l + 32, l + 64 and l + 96 of a half share a byte of upper bits; the lower bits of l
// and l + 64, and of l + 32 and l + 96, share a byte each.
void PackQ6(const std::array<std::uint8_t, 256>& q, std::byte* out) {
  for (std::size_t half = 0; half < 2; ++half) {
    const std::uint8_t* const from = q.data() + half * 128;
    std::byte* const low = out + half * 64;
    std::byte* const high = out + 128 + half * 32;
    for (std::size_t l = 0; l < 32; ++l) {
      const int a = from[l];
      const int b = from[l + 32];
      const int c = from[l + 64];
      const int e = from[l + 96];
      low[l] = static_cast<std::byte>((a & 15) | (c & 15) << 4);
      low[l + 32] = static_cast<std::byte>((b & 15) | (e & 15) << 4);
      high[l] = static_cast<std::byte>(a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (e >> 4) << 6);
    }
  }
}

bool EncodeQ6KBlock(const float* values, std::byte* out) {
  if (!IsOfOrdinarySize(values, q6_groups * q6_group)) return false;
  std::array<float, q6_groups> fits{};
  float extreme = 0.0f;
  for (std::size_t g = 0; g < q6_groups; ++g) {
    fits[g] = FitQ6Group(values + g * q6_group);
    if (std::fabs(fits[g]) > std::fabs(extreme)) extreme = fits[g];
  }
  const float scale = cpu::nearest_float16(extreme / -128.0f);
  if (std::fabs(scale) > cpu::largest_float16) return false;
  const Floats d;
  const Bytes d8;
  std::array<std::uint8_t, 256> integers{};
  for (std::size_t g = 0; g < q6_groups; ++g) {
    const float* const group = values + g * q6_group;
    const int factor = ChooseFactor(group, scale, cpu::rounded_factor(fits[g], scale, -128, 127));
    out[192 + g] = static_cast<std::byte>(factor);
    const auto inverse = Inverse(hn::Set(d, scale * static_cast<float>(factor)));
    for (std::size_t i = 0; i < q6_group; i += Step()) {
      const auto q = RoundTo(hn::Mul(hn::LoadU(d, group + i), inverse), least_q6, most_q6);
      const auto shifted = hn::ConvertTo(Ints(), hn::Sub(q, hn::Set(d, least_q6)));
      hn::StoreU(hn::DemoteTo(d8, shifted), d8, integers.data() + g * q6_group + i);
    }
  }
  PackQ6(integers, out);
  cpu::put_float16(scale, out + 208);
  return true;
}

void DecodeQ6KBlock(const std::byte* in, float* values) {
  const Floats d;
  const Ints di;
  const Bytes d8;
  const float scale = cpu::get_float16(in + 208);
  const auto* const low = reinterpret_cast<const std::uint8_t*>(in);
  const auto* const high = reinterpret_cast<const std::uint8_t*>(in + 128);
  const auto* const factors = reinterpret_cast<const std::int8_t*>(in + 192);
  for (std::size_t g = 0; g < q6_groups; ++g, values += q6_group) {
    const std::size_t half = g / 8;
    const std::size_t quarter = g % 8 / 2;  // of a half: 32 elements
    const std::size_t first = g % 2 * q6_group;
    const auto by = hn::Set(d, scale * static_cast<float>(factors[g]));
    for (std::size_t i = 0; i < q6_group; i += Step()) {
      auto lower = hn::PromoteTo(di, hn::LoadU(d8, low + half * 64 + quarter % 2 * 32 + first + i));
      auto upper = hn::PromoteTo(di, hn::LoadU(d8, high + half * 32 + first + i));
      lower = quarter < 2 ? hn::And(lower, hn::Set(di, 15)) : hn::ShiftRight<4>(lower);
      upper = hn::ShiftRightSame(upper, static_cast<int>(2 * quarter));
      const auto q = hn::Or(lower, hn::ShiftLeft<4>(hn::And(upper, hn::Set(di, 3))));
      const auto centred = hn::ConvertTo(d, hn::Sub(q, hn::Set(di, 32)));
      hn::StoreU(hn::Mul(by, centred), d, values + i);
    }
  }
}

bool EncodeQ6K(const float* values, std::byte* encoded, std::int64_t blocks) {
  bool fits = true;
  for (; blocks > 0; --blocks, values += q6_groups * q6_group, encoded += q6_k_bytes) {
    fits = EncodeQ6KBlock(values, encoded) && fits;
  }
  return fits;
}

void DecodeQ6K(const std::byte* encoded, float* values, std::int64_t blocks) {
  for (; blocks > 0; --blocks, values += q6_groups * q6_group, encoded += q6_k_bytes) {
    DecodeQ6KBlock(encoded, values);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(EncodeQ6K);
HWY_EXPORT(DecodeQ6K);

namespace cpu {

BlockCodec q6_k_codec() {
  return {256, 210,
          [](const float* values, std::byte* encoded, std::int64_t blocks) {
            return HWY_DYNAMIC_DISPATCH(EncodeQ6K)(values, encoded, blocks);
          },
          [](const std::byte* encoded, float* values, std::int64_t blocks) {
            HWY_DYNAMIC_DISPATCH(DecodeQ6K)(encoded, values, blocks);
          }};
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif
