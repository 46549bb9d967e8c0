// The arithmetic of fp8 and MXFP4.
#include "checkpoint/load/weight_decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/low_precision.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t raw_bytes = std::int64_t{1} << 20;        // of encoded elements at a time
constexpr std::int64_t kept_scales = std::int64_t{1} << 16;      // at a time
constexpr std::int64_t strip_elements = std::int64_t{1} << 21;   // decoded at a time
constexpr std::int64_t most_mxfp4_rows = std::int64_t{1} << 20;  // so that a strip has 64 MiB
constexpr std::int64_t group_elements = 32;                      // with one scale, in MXFP4
constexpr std::int64_t group_bytes = group_elements / 2;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

using ByteValues = std::array<float, 256>;

// E4M3 has one NaN for each sign and no infinity, E5M2 has IEEE's.
ByteValues values_of(int exponent_bits, int mantissa_bits, bool has_infinity) {
  ByteValues values{};
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int top = (1 << exponent_bits) - 1;
  const int mantissas = 1 << mantissa_bits;
  for (int byte = 0; byte < 256; ++byte) {
    const int exponent = (byte >> mantissa_bits) & top;
    const int mantissa = byte & (mantissas - 1);
    const int significand = exponent == 0 ? mantissa : mantissas + mantissa;
    auto value =
        std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - bias - mantissa_bits);
    if (has_infinity && exponent == top) {
      value = mantissa == 0 ? std::numeric_limits<float>::infinity() : not_a_number;
    } else if (!has_infinity && exponent == top && mantissa == mantissas - 1) {
      value = not_a_number;
    }
    values[static_cast<std::size_t>(byte)] = (byte & 0x80) != 0 ? -value : value;
  }
  return values;
}

const ByteValues& fp8_values(const StoredDType& stored) {
  static const ByteValues e4m3 = values_of(4, 3, false);
  static const ByteValues e5m2 = values_of(5, 2, true);
  return stored.name == "F8_E4M3" ? e4m3 : e5m2;
}

// E8M0.
const ByteValues& powers_of_two() {
  static const ByteValues values = [] {
    ByteValues powers{};
    for (int byte = 0; byte < 255; ++byte) {
      powers[static_cast<std::size_t>(byte)] = std::ldexp(1.0f, byte - 127);
    }
    powers[255] = not_a_number;
    return powers;
  }();
  return values;
}

std::size_t at_byte(std::byte byte) {
  return std::to_integer<std::size_t>(byte);
}

float scale_at(const StoredDType& stored, const std::byte* data, std::size_t index) {
  if (stored.bits == 8) return powers_of_two()[at_byte(data[index])];
  if (stored.bits == 32) {
    float value = 0;
    std::memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + index * sizeof bits, sizeof bits);
  return stored.dtype == DType::float16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

void put_bfloat16(std::byte* out, std::int64_t index, float value) {
  const std::uint16_t bits = to_bfloat16(value).bits;
  std::memcpy(out + static_cast<std::size_t>(index) * sizeof bits, &bits, sizeof bits);
}

class Fp8Decoder final : public WeightDecoder {
 public:
  Fp8Decoder(FileTensor weight, FileTensor scales, const ScaleGrid& grid,
             std::shared_ptr<DecodeBuffers> buffers)
      : WeightDecoder(weight.entry->name, bfloat16, weight.entry->shape, {weight, scales},
                      std::move(buffers)),
        grid_(grid) {
    const std::vector<std::int64_t>& shape = weight.entry->shape;
    if (!shape.empty()) columns_ = shape.back();
    if (shape.size() > 1) rows_ = shape[shape.size() - 2];
    scale_rows_ = (rows_ - 1) / grid_.block_rows + 1;
    scale_columns_ = (columns_ - 1) / grid_.block_columns + 1;
    scales_ = element_count(scales.entry->shape, scales.entry->name);
  }

  void read(std::int64_t first, std::int64_t count, std::byte* out) const override {
    DecodeBuffers& buffers = own_buffers();
    const FileTensor& weight = parts()[0];
    const ByteValues& values = fp8_values(*weight.entry->stored);
    buffers.raw.resize(static_cast<std::size_t>(std::min(count, raw_bytes)));
    for (std::int64_t done = 0; done < count; done += raw_bytes) {
      const std::int64_t n = std::min(raw_bytes, count - done);
      weight.file->read(*weight.entry, static_cast<std::uint64_t>(first + done), buffers.raw.data(),
                        static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n;) {
        const std::int64_t row = (first + done + i) / columns_;
        const std::int64_t column = (first + done + i) % columns_;
        const std::int64_t block = column / grid_.block_columns;
        const std::int64_t end = std::min(columns_, (block + 1) * grid_.block_columns);
        const std::int64_t run = std::min(end - column, n - i);
        const std::int64_t scale_row = row / rows_ * scale_rows_ + row % rows_ / grid_.block_rows;
        const float scale = scale_of(buffers, scale_row * scale_columns_ + block);
        for (std::int64_t k = i; k < i + run; ++k) {
          put_bfloat16(out, done + k,
                       values[at_byte(buffers.raw[static_cast<std::size_t>(k)])] * scale);
        }
        i += run;
      }
    }
  }

 private:
  float scale_of(DecodeBuffers& buffers, std::int64_t index) const {
    const auto kept = static_cast<std::int64_t>(buffers.scales.size());
    if (index < buffers.first_scale || index >= buffers.first_scale + kept) {
      load_scales(buffers, index);
    }
    return buffers.scales[static_cast<std::size_t>(index - buffers.first_scale)];
  }

  void load_scales(DecodeBuffers& buffers, std::int64_t from) const {
    const FileTensor& scales = parts()[1];
    const auto n = static_cast<std::size_t>(std::min(kept_scales, scales_ - from));
    const std::size_t size = scales.entry->stored->bits / 8;
    std::vector<std::byte> raw(n * size);
    scales.file->read(*scales.entry, static_cast<std::uint64_t>(from) * size, raw.data(),
                      raw.size());
    buffers.scales.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      buffers.scales[i] = scale_at(*scales.entry->stored, raw.data(), i);
    }
    buffers.first_scale = from;
  }

  ScaleGrid grid_;
  std::int64_t rows_ = 1, columns_ = 1;
  std::int64_t scale_rows_ = 1, scale_columns_ = 1;
  std::int64_t scales_ = 0;
};

constexpr std::array<float, 16> e2m1_values{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                            -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// The file has the elements of a group side by side, the decoded weight has them below each other:
// a strip of whole groups is decoded at a time.
class Mxfp4Decoder final : public WeightDecoder {
 public:
  Mxfp4Decoder(std::string name, FileTensor blocks, FileTensor scales,
               std::shared_ptr<DecodeBuffers> buffers)
      : WeightDecoder(std::move(name), bfloat16,
                      {blocks.entry->shape[0], blocks.entry->shape[2] * group_elements,
                       blocks.entry->shape[1]},
                      {blocks, scales}, std::move(buffers)),
        rows_(blocks.entry->shape[1]),
        groups_(blocks.entry->shape[2]) {
    const std::int64_t fit = strip_elements / (group_elements * std::max<std::int64_t>(rows_, 1));
    strip_groups_ = std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(groups_, 1));
  }

  void read(std::int64_t first, std::int64_t count, std::byte* out) const override {
    DecodeBuffers& buffers = own_buffers();
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t row = first / rows_;  // of the decoded matrices of all experts
      if (row < buffers.first_row || row >= buffers.end_row) load_strip(buffers, row);
      const std::int64_t part = std::min(end, buffers.end_row * rows_) - first;
      const auto skipped = static_cast<std::size_t>(first - buffers.first_row * rows_);
      const std::size_t bytes = static_cast<std::size_t>(part) * sizeof(std::uint16_t);
      std::memcpy(out, buffers.strip.data() + skipped, bytes);
      out += bytes;
      first += part;
    }
  }

 private:
  void load_strip(DecodeBuffers& buffers, std::int64_t row) const {
    const std::int64_t expert = row / (groups_ * group_elements);
    const std::int64_t group = row / group_elements - expert * groups_;
    const std::int64_t begin = group / strip_groups_ * strip_groups_;
    const std::int64_t number = std::min(strip_groups_, groups_ - begin);
    buffers.strip.resize(static_cast<std::size_t>(number * group_elements * rows_));
    buffers.raw.resize(static_cast<std::size_t>(number * (group_bytes + 1)));
    std::byte* const exponents = buffers.raw.data() + number * group_bytes;
    for (std::int64_t column = 0; column < rows_; ++column) {
      const auto at = static_cast<std::uint64_t>((expert * rows_ + column) * groups_ + begin);
      parts()[0].file->read(*parts()[0].entry, at * group_bytes, buffers.raw.data(),
                            static_cast<std::size_t>(number * group_bytes));
      parts()[1].file->read(*parts()[1].entry, at, exponents, static_cast<std::size_t>(number));
      for (std::int64_t g = 0; g < number; ++g) {
        decode_group(buffers.raw.data() + g * group_bytes, powers_of_two()[at_byte(exponents[g])],
                     buffers.strip.data() + g * group_elements * rows_ + column);
      }
    }
    buffers.first_row = (expert * groups_ + begin) * group_elements;
    buffers.end_row = buffers.first_row + number * group_elements;
  }

  void decode_group(const std::byte* packed, float scale, std::uint16_t* out) const {
    for (std::int64_t i = 0; i < group_bytes; ++i) {
      const std::size_t byte = at_byte(packed[i]);
      out[2 * i * rows_] = to_bfloat16(e2m1_values[byte & 15u] * scale).bits;
      out[(2 * i + 1) * rows_] = to_bfloat16(e2m1_values[byte >> 4] * scale).bits;
    }
  }

  std::int64_t rows_, groups_;
  std::int64_t strip_groups_ = 1;
};

}  // namespace

DecodeBuffers& WeightDecoder::own_buffers() const {
  DecodeBuffers& buffers = *buffers_;
  if (buffers.owner != this) {
    buffers.scales.clear();
    buffers.first_row = buffers.end_row = 0;
    buffers.owner = this;
  }
  return buffers;
}

bool is_fp8(const StoredDType& stored) {
  return stored.name == "F8_E4M3" || stored.name == "F8_E5M2";
}

bool is_scale(const StoredDType& stored) {
  return stored.dtype == DType::float32 || stored.dtype == DType::float16 ||
         stored.dtype == DType::bfloat16 || stored.dtype == DType::uint8 ||
         stored.name == "F8_E8M0";
}

std::unique_ptr<WeightDecoder> make_fp8_decoder(FileTensor weight, FileTensor scales,
                                                const ScaleGrid& grid,
                                                std::shared_ptr<DecodeBuffers> buffers) {
  return std::make_unique<Fp8Decoder>(weight, scales, grid, std::move(buffers));
}

std::unique_ptr<WeightDecoder> make_mxfp4_decoder(std::string name, FileTensor blocks,
                                                  FileTensor scales,
                                                  std::shared_ptr<DecodeBuffers> buffers) {
  const std::vector<std::int64_t>& shape = blocks.entry->shape;
  const bool fits = shape.size() == 4 && shape[3] == group_bytes &&
                    std::find(shape.begin(), shape.end(), 0) == shape.end() &&
                    blocks.entry->stored->dtype == DType::uint8 &&
                    scales.entry->shape == std::vector{shape[0], shape[1], shape[2]} &&
                    scales.entry->stored->bits == 8 && is_scale(*scales.entry->stored);
  TESSERA_CHECK(
      fits && shape[1] <= most_mxfp4_rows, ErrorCode::checkpoint,
      "'{}': tensors '{}' {} {} and '{}' {} {} are not MXFP4, which is U8 [experts, rows, "
      "groups, 16] and U8 [experts, rows, groups], of {} rows at most",
      blocks.file->path().string(), blocks.entry->name, blocks.entry->stored->name,
      describe_shape(shape), scales.entry->name, scales.entry->stored->name,
      describe_shape(scales.entry->shape), most_mxfp4_rows);
  return std::make_unique<Mxfp4Decoder>(std::move(name), blocks, scales, std::move(buffers));
}

}  // namespace tessera::checkpoint
