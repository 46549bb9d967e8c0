// Quantisation in blocks, by the rules of ggml's reference (quantize_row_q8_0_ref and
// quantize_row_q4_0_ref): the gguf package's quants module gives the same bytes.
#include "checkpoint/formats/gguf/gguf_types.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/low_precision.h"
#include "base/parallel.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::int64_t quant_block = 32;
constexpr std::size_t q8_bytes = 2 + 32;
constexpr std::size_t q4_bytes = 2 + 16;
constexpr std::int64_t quant_grain = 1024;  // blocks of one thread
constexpr float largest_half = 65504.0f;

// The factor that the elements are multiplied with. Infinite for subnormal scales, whose float16
// is 0: such a block holds zeros whatever its integers are.
float inverse_of(float scale) {
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void put_scale(float scale, std::byte* out) {
  const Float16 half = to_float16(scale);
  std::memcpy(out, &half.bits, sizeof half.bits);
}

float get_scale(const std::byte* in) {
  Float16 half{};
  std::memcpy(&half.bits, in, sizeof half.bits);
  return to_float(half);
}

// The bits of the largest magnitude of a block; compared as integers, which is the same order.
std::int32_t largest_bits(const float* values) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < quant_block; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  }
  return largest;
}

constexpr std::int32_t bits_of_infinity = 0x7f800000;  // more: not a number

// The largest magnitude has the integer 127. Rounds halves away from zero.
bool encode_q8_block(const float* values, std::byte* out) {
  const std::int32_t bits = largest_bits(values);
  const auto largest = std::bit_cast<float>(bits);
  const float scale = largest / 127.0f;
  if (bits >= bits_of_infinity || scale > largest_half) return false;
  const float inverse = inverse_of(scale);
  put_scale(scale, out);
  std::array<std::int8_t, quant_block> integers{};
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const float scaled = values[i] * inverse;
    const float magnitude = std::fabs(scaled);
    const auto whole = static_cast<std::int32_t>(magnitude);
    const std::int32_t rounded = whole + (magnitude - static_cast<float>(whole) >= 0.5f ? 1 : 0);
    integers[i] = static_cast<std::int8_t>(scaled < 0.0f ? -rounded : rounded);
  }
  std::memcpy(out + 2, integers.data(), integers.size());
  return true;
}

bool encode_q8(const float* values, std::byte* out, std::int64_t blocks) {
  bool fits = true;
  for (std::int64_t b = 0; b < blocks; ++b) {
    fits =
        encode_q8_block(values + b * quant_block, out + static_cast<std::size_t>(b) * q8_bytes) &&
        fits;
  }
  return fits;
}

void decode_q8(const std::byte* in, float* values, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b, in += q8_bytes, values += quant_block) {
    const float scale = get_scale(in);
    std::array<std::int8_t, quant_block> integers{};
    std::memcpy(integers.data(), in + 2, integers.size());
    for (std::size_t i = 0; i < integers.size(); ++i) {
      values[i] = static_cast<float>(integers[i]) * scale;
    }
  }
}

// The first element of the largest magnitude has the integer 0, which stands for -8. Byte i holds
// element i in its low and element i + 16 in its high half.
bool encode_q4_block(const float* values, std::byte* out) {
  const std::int32_t bits = largest_bits(values);
  if (bits >= bits_of_infinity) return false;
  std::int64_t first = 0;
  while ((std::bit_cast<std::int32_t>(values[first]) & 0x7fffffff) != bits) ++first;
  const float extreme = values[first];
  const float scale = extreme / -8.0f;
  if (std::fabs(scale) > largest_half) return false;
  const float inverse = inverse_of(scale);
  put_scale(scale, out);
  std::array<std::int32_t, quant_block> integers{};
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const auto shifted = static_cast<std::int32_t>(values[i] * inverse + 8.5f);
    integers[i] = std::min(shifted, 15);
  }
  constexpr std::size_t half = integers.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    out[2 + i] = static_cast<std::byte>(integers[i] | integers[i + half] << 4);
  }
  return true;
}

bool encode_q4(const float* values, std::byte* out, std::int64_t blocks) {
  bool fits = true;
  for (std::int64_t b = 0; b < blocks; ++b) {
    fits =
        encode_q4_block(values + b * quant_block, out + static_cast<std::size_t>(b) * q4_bytes) &&
        fits;
  }
  return fits;
}

void decode_q4(const std::byte* in, float* values, std::int64_t blocks) {
  constexpr std::size_t half = quant_block / 2;
  for (std::int64_t b = 0; b < blocks; ++b, in += q4_bytes, values += quant_block) {
    const float scale = get_scale(in);
    for (std::size_t i = 0; i < half; ++i) {
      const auto pair = std::to_integer<int>(in[2 + i]);
      values[i] = static_cast<float>((pair & 15) - 8) * scale;
      values[i + half] = static_cast<float>((pair >> 4) - 8) * scale;
    }
  }
}

// The names of ggml's types by number.
constexpr std::array<std::pair<std::uint32_t, const char*>, 28> ggml_names{
    {{3, "q4_1"},     {6, "q5_0"},   {7, "q5_1"},    {9, "q8_1"},   {10, "q2_k"},    {11, "q3_k"},
     {12, "q4_k"},    {13, "q5_k"},  {14, "q6_k"},   {15, "q8_k"},  {16, "iq2_xxs"}, {17, "iq2_xs"},
     {18, "iq3_xxs"}, {19, "iq1_s"}, {20, "iq4_nl"}, {21, "iq3_s"}, {22, "iq2_s"},   {23, "iq4_xs"},
     {24, "i8"},      {25, "i16"},   {26, "i32"},    {27, "i64"},   {28, "f64"},     {29, "iq1_m"},
     {34, "tq1_0"},   {35, "tq2_0"}, {39, "mxfp4"},  {40, "nvfp4"}}};

}  // namespace

const std::vector<GgufType>& gguf_types() {
  static const std::vector<GgufType> types{
      {0, "f32", 1, 4, DType::float32, 0},
      {1, "f16", 1, 2, DType::float16, 1},
      {30, "bf16", 1, 2, DType::bfloat16, 32},
      {8, "q8_0", quant_block, q8_bytes, DType::float32, 7, encode_q8, decode_q8},
      {2, "q4_0", quant_block, q4_bytes, DType::float32, 2, encode_q4, decode_q4},
  };
  return types;
}

const GgufType* find_gguf_type(std::string_view name) {
  for (const GgufType& type : gguf_types()) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const GgufType* find_gguf_type(std::uint32_t id) {
  for (const GgufType& type : gguf_types()) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string gguf_type_name(std::uint32_t id) {
  if (const GgufType* type = find_gguf_type(id)) return type->name;
  for (const auto& [number, name] : ggml_names) {
    if (number == id) return name;
  }
  return fmt::format("number {}", id);
}

bool encode_blocks(const GgufType& type, const float* values, std::byte* out, std::int64_t blocks) {
  std::atomic<bool> fits{true};
  parallel_for(0, blocks, quant_grain, [&](std::int64_t first, std::int64_t last) {
    if (!type.encode(values + first * type.block,
                     out + static_cast<std::size_t>(first) * type.bytes, last - first)) {
      fits = false;
    }
  });
  return fits;
}

void decode_blocks(const GgufType& type, const std::byte* in, float* values, std::int64_t blocks) {
  parallel_for(0, blocks, quant_grain, [&](std::int64_t first, std::int64_t last) {
    type.decode(in + static_cast<std::size_t>(first) * type.bytes, values + first * type.block,
                last - first);
  });
}

}  // namespace tessera::checkpoint::formats
