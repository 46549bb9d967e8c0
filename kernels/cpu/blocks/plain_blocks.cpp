// q8_0 and q4_0: 32 elements with one scale.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/blocks/plain_blocks.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/blocks.h"
#include "kernels/cpu/blocks/blocks-inl.h"
#include "kernels/cpu/blocks/scales.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

using namespace blocks;

constexpr std::size_t plain_elements = 32;
constexpr std::size_t q8_0_bytes = 2 + 32;
constexpr std::size_t q4_0_bytes = 2 + 16;

bool EncodeQ8Block(const float* values, std::byte* out) {
  const std::int32_t bits = LargestBits(values, plain_elements);
  const float scale = std::bit_cast<float>(bits) / 127.0f;
  if (bits >= cpu::bits_of_infinity || scale > cpu::largest_float16) return false;
  cpu::put_float16(scale, out);
  const Floats d;
  const Ints di;
  const hn::Rebind<std::int8_t, Floats> d8;
  const auto inverse = hn::Set(d, cpu::inverse_scale(scale));
  auto* const integers = reinterpret_cast<std::int8_t*>(out + 2);
  for (std::size_t i = 0; i < plain_elements; i += Step()) {
    const auto scaled = hn::Mul(hn::LoadU(d, values + i), inverse);
    const auto magnitude = hn::Abs(scaled);
    const auto whole = hn::ConvertTo(di, magnitude);
    const auto fraction = hn::Sub(magnitude, hn::ConvertTo(d, whole));
    const auto up = hn::RebindMask(di, hn::Ge(fraction, hn::Set(d, 0.5f)));
    const auto rounded = hn::Add(whole, hn::IfThenElseZero(up, hn::Set(di, 1)));
    const auto negative = hn::RebindMask(di, hn::Lt(scaled, hn::Zero(d)));
    const auto with_sign = hn::IfThenElse(negative, hn::Neg(rounded), rounded);
    hn::StoreU(hn::DemoteTo(d8, with_sign), d8, integers + i);
  }
  return true;
}

void DecodeQ8Block(const std::byte* in, float* values) {
  const Floats d;
  const Ints di;
  const hn::Rebind<std::int8_t, Floats> d8;
  const auto scale = hn::Set(d, cpu::get_float16(in));
  const auto* const integers = reinterpret_cast<const std::int8_t*>(in + 2);
  for (std::size_t i = 0; i < plain_elements; i += Step()) {
    const auto whole = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, integers + i)));
    hn::StoreU(hn::Mul(whole, scale), d, values + i);
  }
}

bool EncodeQ4Block(const float* values, std::byte* out) {
  const std::int32_t bits = LargestBits(values, plain_elements);
  if (bits >= cpu::bits_of_infinity) return false;
  std::size_t first = 0;
  while ((std::bit_cast<std::int32_t>(values[first]) & 0x7fffffff) != bits) ++first;
  const float scale = values[first] / -8.0f;
  if (std::fabs(scale) > cpu::largest_float16) return false;
  cpu::put_float16(scale, out);
  const Floats d;
  const Ints di;
  const Bytes d8;
  const auto inverse = hn::Set(d, cpu::inverse_scale(scale));
  const auto integers_of = [&](std::size_t i) HWY_ATTR {
    const auto shifted = hn::Add(hn::Mul(hn::LoadU(d, values + i), inverse), hn::Set(d, 8.5f));
    return hn::Min(hn::ConvertTo(di, shifted), hn::Set(di, 15));
  };
  auto* const packed = reinterpret_cast<std::uint8_t*>(out + 2);
  for (std::size_t i = 0; i < plain_elements / 2; i += Step()) {
    const auto pair = hn::Or(integers_of(i), hn::ShiftLeft<4>(integers_of(i + plain_elements / 2)));
    hn::StoreU(hn::DemoteTo(d8, pair), d8, packed + i);
  }
  return true;
}

void DecodeQ4Block(const std::byte* in, float* values) {
  const Floats d;
  const Ints di;
  const Bytes d8;
  const auto scale = hn::Set(d, cpu::get_float16(in));
  const auto* const packed = reinterpret_cast<const std::uint8_t*>(in + 2);
  const auto element = [&](auto integer) HWY_ATTR {
    return hn::Mul(hn::ConvertTo(d, hn::Sub(integer, hn::Set(di, 8))), scale);
  };
  for (std::size_t i = 0; i < plain_elements / 2; i += Step()) {
    const auto pair = hn::PromoteTo(di, hn::LoadU(d8, packed + i));
    hn::StoreU(element(hn::And(pair, hn::Set(di, 15))), d, values + i);
    hn::StoreU(element(hn::ShiftRight<4>(pair)), d, values + i + plain_elements / 2);
  }
}

bool EncodeQ8(const float* values, std::byte* encoded, std::int64_t blocks) {
  bool fits = true;
  for (; blocks > 0; --blocks, values += plain_elements, encoded += q8_0_bytes) {
    fits = EncodeQ8Block(values, encoded) && fits;
  }
  return fits;
}

void DecodeQ8(const std::byte* encoded, float* values, std::int64_t blocks) {
  for (; blocks > 0; --blocks, values += plain_elements, encoded += q8_0_bytes) {
    DecodeQ8Block(encoded, values);
  }
}

bool EncodeQ4(const float* values, std::byte* encoded, std::int64_t blocks) {
  bool fits = true;
  for (; blocks > 0; --blocks, values += plain_elements, encoded += q4_0_bytes) {
    fits = EncodeQ4Block(values, encoded) && fits;
  }
  return fits;
}

void DecodeQ4(const std::byte* encoded, float* values, std::int64_t blocks) {
  for (; blocks > 0; --blocks, values += plain_elements, encoded += q4_0_bytes) {
    DecodeQ4Block(encoded, values);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(EncodeQ8);
HWY_EXPORT(DecodeQ8);
HWY_EXPORT(EncodeQ4);
HWY_EXPORT(DecodeQ4);

namespace cpu {
namespace {

bool encode_q8_0(const float* values, std::byte* encoded, std::int64_t blocks) {
  return HWY_DYNAMIC_DISPATCH(EncodeQ8)(values, encoded, blocks);
}
void decode_q8_0(const std::byte* encoded, float* values, std::int64_t blocks) {
  HWY_DYNAMIC_DISPATCH(DecodeQ8)(encoded, values, blocks);
}
bool encode_q4_0(const float* values, std::byte* encoded, std::int64_t blocks) {
  return HWY_DYNAMIC_DISPATCH(EncodeQ4)(values, encoded, blocks);
}
void decode_q4_0(const std::byte* encoded, float* values, std::int64_t blocks) {
  HWY_DYNAMIC_DISPATCH(DecodeQ4)(encoded, values, blocks);
}

}  // namespace

BlockCodec q8_0_codec() {
  return {32, 2 + 32, encode_q8_0, decode_q8_0};
}
BlockCodec q4_0_codec() {
  return {32, 2 + 16, encode_q4_0, decode_q4_0};
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif
