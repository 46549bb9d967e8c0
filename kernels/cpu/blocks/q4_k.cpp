// q4_k: 256 elements in 8 groups of 32. A group has a 6-bit factor of the block's scale and a 6-bit
// factor of the block's offset.
//
// The search minimises the sum of squared errors. Each lane of a vector is a candidate, so the
// order of a candidate's sums does not depend on the width of vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/blocks/q4_k.cpp"
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

constexpr std::size_t q4_groups = 8;
constexpr std::size_t q4_group = 32;  // elements
constexpr std::size_t q4_k_bytes = 2 + 2 + 12 + 128;
constexpr float most_q4 = 15.0f;
constexpr float most_factor = 63.0f;
constexpr int q4_fits = 3;  // passes of rounding and fitting

// x = scale q + offset.
struct Affine {
  float scale, offset;
};

// One pass: rounds the elements with each candidate, and gives the candidate the scale and the
// offset of least squares for these integers. Offsets above `most_offset` cannot be stored.
void FitAffine(const float* x, float sum, float most_offset, float* scales, float* offsets,
               float* errors) {
  const Floats d;
  const auto n = hn::Set(d, static_cast<float>(q4_group));
  const auto sum_x = hn::Set(d, sum);
  const auto zero = hn::Zero(d);
  for (std::size_t c = 0; c < candidates; c += Step()) {
    const auto old_offset = hn::Load(d, offsets + c);
    const auto inverse = Inverse(hn::Load(d, scales + c));
    auto sum_q = zero;
    auto sum_qq = zero;
    auto sum_xq = zero;
    for (std::size_t i = 0; i < q4_group; ++i) {
      const auto value = hn::Set(d, x[i]);
      const auto q = RoundTo(hn::Mul(hn::Sub(value, old_offset), inverse), 0.0f, most_q4);
      sum_q = hn::Add(sum_q, q);
      sum_qq = hn::Add(sum_qq, hn::Mul(q, q));
      sum_xq = hn::Add(sum_xq, hn::Mul(value, q));
    }
    // Without an offset, and with one where the integers differ and the offset can be stored.
    const auto alone = hn::Mul(sum_xq, Inverse(sum_qq));
    const auto determinant = hn::Sub(hn::Mul(n, sum_qq), hn::Mul(sum_q, sum_q));
    const auto by_determinant = Inverse(determinant);
    auto scale = hn::Mul(hn::Sub(hn::Mul(n, sum_xq), hn::Mul(sum_x, sum_q)), by_determinant);
    auto offset = hn::Mul(hn::Sub(hn::Mul(sum_qq, sum_x), hn::Mul(sum_q, sum_xq)), by_determinant);
    const auto most = hn::Set(d, most_offset);
    const auto allowed = hn::And(hn::Gt(determinant, zero), hn::Le(offset, most));
    // The best scale at the largest offset.
    const auto at_most = hn::Sub(alone, hn::Mul(hn::Mul(most, sum_q), Inverse(sum_qq)));
    scale = hn::IfThenElse(allowed, scale, at_most);
    offset = hn::IfThenElse(allowed, offset, most);
    // The error, without the sum of squares, which all candidates have.
    const auto products = hn::Add(hn::Mul(scale, sum_xq), hn::Mul(offset, sum_x));
    const auto squares = hn::Add(
        hn::Add(hn::Mul(hn::Mul(scale, scale), sum_qq), hn::Mul(hn::Mul(offset, offset), n)),
        hn::Mul(hn::Set(d, 2.0f), hn::Mul(hn::Mul(scale, offset), sum_q)));
    hn::Store(scale, d, scales + c);
    hn::Store(offset, d, offsets + c);
    hn::Store(hn::Sub(squares, hn::Add(products, products)), d, errors + c);
  }
}

// The scale and the offset of a group before they are rounded. The offset is 0 or less.
Affine FitQ4Group(const float* values) {
  const float low = *std::min_element(values, values + q4_group);
  const float high = *std::max_element(values, values + q4_group);
  const float least = std::min(low, 0.0f);
  if (!(high - least > smallest_range)) return {0.0f, least};
  // Counted from the least, where the sums of squares are of the size of the errors.
  std::array<float, q4_group> x{};
  float sum = 0.0f;
  for (std::size_t i = 0; i < q4_group; ++i) {
    x[i] = values[i] - least;
    sum += x[i];
  }
  Candidates fits;
  for (std::size_t c = 0; c < candidates; ++c) {
    // 13.5 to 17.25 steps: a smaller range than the group's cuts the ends.
    fits.scales[c] = (high - least) / (13.5f + 0.25f * static_cast<float>(c));
    fits.offsets[c] = 0.0f;
  }
  for (int pass = 0; pass < q4_fits; ++pass) {
    FitAffine(x.data(), sum, -least, fits.scales, fits.offsets, fits.errors);
  }
  const std::size_t best = fits.Best();
  return {fits.scales[best], std::min(fits.offsets[best] + least, 0.0f)};
}

// Tries the factors around the rounded ones with the integers that they lead to.
void ChooseFactors(const float* values, float scale, float offset, int& factor, int& shift) {
  const Floats d;
  Candidates tried;
  std::array<int, candidates> factors{};
  std::array<int, candidates> shifts{};
  for (std::size_t c = 0; c < candidates; ++c) {
    const int step = static_cast<int>(c);
    factors[c] = std::clamp(factor + step % 3 - 1, 0, static_cast<int>(most_factor));
    shifts[c] = std::clamp(shift + step / 3 - 2, 0, static_cast<int>(most_factor));
    tried.scales[c] = scale * static_cast<float>(factors[c]);
    tried.offsets[c] = offset * static_cast<float>(shifts[c]);
  }
  for (std::size_t c = 0; c < candidates; c += Step()) {
    const auto by = hn::Load(d, tried.scales + c);
    const auto below = hn::Load(d, tried.offsets + c);
    const auto inverse = Inverse(by);
    auto error = hn::Zero(d);
    for (std::size_t i = 0; i < q4_group; ++i) {
      const auto value = hn::Add(hn::Set(d, values[i]), below);
      const auto q = RoundTo(hn::Mul(value, inverse), 0.0f, most_q4);
      const auto difference = hn::Sub(hn::Mul(by, q), value);
      error = hn::Add(error, hn::Mul(difference, difference));
    }
    hn::Store(error, d, tried.errors + c);
  }
  const std::size_t best = tried.Best();
  factor = factors[best];
  shift = shifts[best];
}

void PutQ4Integers(const float* values, float scale, float offset, std::int32_t* integers) {
  const Floats d;
  const auto inverse = Inverse(hn::Set(d, scale));
  for (std::size_t i = 0; i < q4_group; i += Step()) {
    const auto value = hn::Add(hn::LoadU(d, values + i), hn::Set(d, offset));
    const auto q = RoundTo(hn::Mul(value, inverse), 0.0f, most_q4);
    hn::StoreU(hn::ConvertTo(Ints(), q), Ints(), integers + i);
  }
}

// 6-bit factors and shifts in 12 bytes: those of groups 0 to 3 in the low bits of a byte each; the
// low halves of the others share a byte, their two upper bits are those of the first 8 bytes.
void PackFactors(const std::array<int, q4_groups>& factors,
                 const std::array<int, q4_groups>& shifts, std::byte* out) {
  for (std::size_t g = 0; g < 4; ++g) {
    out[g] = static_cast<std::byte>(factors[g] | (factors[g + 4] >> 4) << 6);
    out[g + 4] = static_cast<std::byte>(shifts[g] | (shifts[g + 4] >> 4) << 6);
    out[g + 8] = static_cast<std::byte>((factors[g + 4] & 15) | (shifts[g + 4] & 15) << 4);
  }
}

bool EncodeQ4KBlock(const float* values, std::byte* out) {
  if (!IsOfOrdinarySize(values, q4_groups * q4_group)) return false;
  std::array<Affine, q4_groups> fits{};
  float most_scale = 0.0f;
  float most_offset = 0.0f;
  for (std::size_t g = 0; g < q4_groups; ++g) {
    fits[g] = FitQ4Group(values + g * q4_group);
    most_scale = std::max(most_scale, fits[g].scale);
    most_offset = std::max(most_offset, -fits[g].offset);
  }
  const float scale = cpu::nearest_float16(most_scale / most_factor);
  const float offset = cpu::nearest_float16(most_offset / most_factor);
  if (scale > cpu::largest_float16 || offset > cpu::largest_float16) return false;
  cpu::put_float16(scale, out);
  cpu::put_float16(offset, out + 2);
  std::array<int, q4_groups> factors{};
  std::array<int, q4_groups> shifts{};
  std::array<std::int32_t, 2 * q4_group> integers{};
  std::byte* packed = out + 16;
  for (std::size_t g = 0; g < q4_groups; ++g) {
    const float* const group = values + g * q4_group;
    factors[g] = cpu::rounded_factor(fits[g].scale, scale, 0, 63);
    shifts[g] = cpu::rounded_factor(-fits[g].offset, offset, 0, 63);
    ChooseFactors(group, scale, offset, factors[g], shifts[g]);
    PutQ4Integers(group, scale * static_cast<float>(factors[g]),
                  offset * static_cast<float>(shifts[g]), integers.data() + g % 2 * q4_group);
    if (g % 2 == 0) continue;
    for (std::size_t i = 0; i < q4_group; ++i) {
      *packed++ = static_cast<std::byte>(integers[i] | integers[i + q4_group] << 4);
    }
  }
  PackFactors(factors, shifts, out + 4);
  return true;
}

void DecodeQ4KBlock(const std::byte* in, float* values) {
  const Floats d;
  const Ints di;
  const Bytes d8;
  const float scale = cpu::get_float16(in);
  const float offset = cpu::get_float16(in + 2);
  const auto* const packed_factors = reinterpret_cast<const std::uint8_t*>(in + 4);
  for (std::size_t g = 0; g < q4_groups; ++g, values += q4_group) {
    const auto* const p = packed_factors + g % 4;
    const int factor = g < 4 ? p[0] & 63 : (p[8] & 15) | (p[0] >> 6) << 4;
    const int shift = g < 4 ? p[4] & 63 : (p[8] >> 4) | (p[4] >> 6) << 4;
    const auto by = hn::Set(d, scale * static_cast<float>(factor));
    const auto below = hn::Set(d, offset * static_cast<float>(shift));
    const auto* const packed = reinterpret_cast<const std::uint8_t*>(in + 16) + g / 2 * q4_group;
    for (std::size_t i = 0; i < q4_group; i += Step()) {
      const auto pair = hn::PromoteTo(di, hn::LoadU(d8, packed + i));
      const auto q = g % 2 == 0 ? hn::And(pair, hn::Set(di, 15)) : hn::ShiftRight<4>(pair);
      hn::StoreU(hn::Sub(hn::Mul(by, hn::ConvertTo(d, q)), below), d, values + i);
    }
  }
}

bool EncodeQ4K(const float* values, std::byte* encoded, std::int64_t blocks) {
  bool fits = true;
  for (; blocks > 0; --blocks, values += q4_groups * q4_group, encoded += q4_k_bytes) {
    fits = EncodeQ4KBlock(values, encoded) && fits;
  }
  return fits;
}

void DecodeQ4K(const std::byte* encoded, float* values, std::int64_t blocks) {
  for (; blocks > 0; --blocks, values += q4_groups * q4_group, encoded += q4_k_bytes) {
    DecodeQ4KBlock(encoded, values);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(EncodeQ4K);
HWY_EXPORT(DecodeQ4K);

namespace cpu {

BlockCodec q4_k_codec() {
  return {256, 144,
          [](const float* values, std::byte* encoded, std::int64_t blocks) {
            return HWY_DYNAMIC_DISPATCH(EncodeQ4K)(values, encoded, blocks);
          },
          [](const std::byte* encoded, float* values, std::int64_t blocks) {
            HWY_DYNAMIC_DISPATCH(DecodeQ4K)(encoded, values, blocks);
          }};
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif
