// Codes of frozen weights: what encoders write, and the numbers that come back.
#include <cmath>

#include "base/quantized.h"
#include "kernels/blocks.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

struct Codes {
  QuantizedFormat format;
  std::int64_t rows, columns;
  std::vector<std::byte> bytes;
};

Codes encoded(QuantizedFormat format, std::int64_t rows, std::int64_t columns,
              const std::vector<float>& values) {
  Codes codes{format, rows, columns, {}};
  codes.bytes.resize(static_cast<std::size_t>(quantized_bytes(format, rows, columns)));
  if (format == QuantizedFormat::int8) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float scale = cpu::encode_int8_row(values.data() + row * columns,
                                               codes.bytes.data() + row * columns, columns);
      std::memcpy(codes.bytes.data() + rows * columns + 4 * row, &scale, 4);
    }
    return codes;
  }
  const Nf4Layout layout(rows * columns);
  std::vector<float> scales(static_cast<std::size_t>(layout.blocks));
  cpu::encode_nf4(values.data(), codes.bytes.data(), scales.data(), layout.blocks);
  cpu::encode_nf4_scales(scales.data(), rows * columns, codes.bytes.data() + layout.scale_codes);
  return codes;
}

template <class T>
constexpr DType dtype_for() {
  if constexpr (std::is_same_v<T, BFloat16>) return bfloat16;
  if constexpr (std::is_same_v<T, Float16>) return float16;
  return float32;
}

template <class T>
std::vector<T> numbers_of(const Codes& codes, std::int64_t first_row, std::int64_t row_count,
                          std::int64_t first_column, std::int64_t column_count) {
  std::vector<T> out(static_cast<std::size_t>(row_count * column_count));
  cpu::dequantize({.format = codes.format,
                   .weight = codes.bytes.data(),
                   .out = out.data(),
                   .rows = codes.rows,
                   .columns = codes.columns,
                   .first_row = first_row,
                   .row_count = row_count,
                   .first_column = first_column,
                   .column_count = column_count,
                   .dtype = dtype_for<T>()});
  return out;
}

float float_at(const Codes& codes, std::int64_t place) {
  float value = 0;
  std::memcpy(&value, codes.bytes.data() + place, 4);
  return value;
}

// The layouts of base/quantized.h, spelled out.
float number_at(const Codes& codes, std::int64_t row, std::int64_t column) {
  const std::int64_t n = codes.rows * codes.columns, i = row * codes.columns + column;
  const auto byte = [&](std::int64_t at) {
    return std::to_integer<int>(codes.bytes[static_cast<std::size_t>(at)]);
  };
  if (codes.format == QuantizedFormat::int8) {
    return static_cast<float>(static_cast<std::int8_t>(byte(i))) * float_at(codes, n + 4 * row);
  }
  const std::int64_t block = i / 64, blocks = n / 64;
  const std::int64_t factors = n / 2 + (blocks + 3) / 4 * 4;
  const float scale = nf4_scale_codes[static_cast<std::size_t>(byte(n / 2 + block))] *
                          float_at(codes, factors + 4 * (block / 256)) +
                      float_at(codes, factors + 4 * ((blocks + 255) / 256));
  const int code = i % 2 == 0 ? byte(i / 2) >> 4 : byte(i / 2) & 15;
  return nf4_values[static_cast<std::size_t>(code)] * scale;
}

constexpr QuantizedFormat all_formats[] = {QuantizedFormat::nf4, QuantizedFormat::int8};

// 300 blocks and 67: more than one group of scales, and rows that end within blocks.
constexpr std::int64_t code_shapes[][2] = {{150, 128}, {64, 67}, {1, 64}, {67, 64}};

template <class T>
void expect_numbers(const Codes& codes) {
  std::vector<T> wanted;
  for (std::int64_t row = 0; row < codes.rows; ++row) {
    for (std::int64_t column = 0; column < codes.columns; ++column) {
      wanted.push_back(from_float<T>(number_at(codes, row, column)));
    }
  }
  for (const int threads : {1, 2}) {
    set_compute_threads(threads);
    EXPECT_TRUE(testing::same_bits(numbers_of<T>(codes, 0, codes.rows, 0, codes.columns), wanted));
  }
  set_compute_threads(1);
  // Rectangles: rows, columns, and an odd place inside.
  const std::int64_t low = codes.rows / 3, left = codes.columns / 4 + 1;
  std::vector<T> inside;
  for (std::int64_t row = low; row < codes.rows; ++row) {
    for (std::int64_t column = left; column < codes.columns - 2; ++column) {
      inside.push_back(wanted[static_cast<std::size_t>(row * codes.columns + column)]);
    }
  }
  EXPECT_TRUE(testing::same_bits(
      numbers_of<T>(codes, low, codes.rows - low, left, codes.columns - 2 - left), inside));
}

TEST(Dequantize, GivesTheNumbersOfTheLayoutInEveryDtype) {
  for (const QuantizedFormat format : all_formats) {
    for (const auto& [rows, columns] : code_shapes) {
      const Codes codes = encoded(format, rows, columns, normals<float>(rows * columns, 3));
      expect_numbers<float>(codes);
      expect_numbers<BFloat16>(codes);
      expect_numbers<Float16>(codes);
    }
  }
}

TEST(Dequantize, NumbersAreNearTheValues) {
  const std::int64_t rows = 150, columns = 128;
  const std::vector<float> values = normals<float>(rows * columns, 5, 0.02);
  const auto error = [&](QuantizedFormat format) {
    const Codes codes = encoded(format, rows, columns, values);
    const auto numbers = numbers_of<float>(codes, 0, rows, 0, columns);
    double squares = 0, all = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      squares += std::pow(double{numbers[i]} - values[i], 2);
      all += std::pow(double{values[i]}, 2);
    }
    return std::sqrt(squares / all);
  };
  EXPECT_LT(error(QuantizedFormat::nf4), 0.1);
  EXPECT_LT(error(QuantizedFormat::int8), 0.01);
}

// From bitsandbytes 0.50.2: quantize_4bit(x, quant_type="nf4", compress_statistics=True) of
// x[i] = sin(i * i) * (1 + i // 64) for 128 elements.
TEST(Dequantize, CodesAreThoseOfBitsandbytes) {
  std::vector<float> values(128);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto square = static_cast<double>(i * i);
    values[i] = static_cast<float>(std::sin(square) * static_cast<double>(1 + i / 64));
  }
  const Codes codes = encoded(QuantizedFormat::nf4, 2, 64, values);
  const std::vector<int> wanted = {
      126, 28,  70,  0,   241, 47,  34,  240, 7,   58,  15,  159, 9,   41,  1,  244, 95,
      101, 241, 12,  20,  15,  239, 3,   14,  20,  236, 219, 221, 216, 79,  0,  44,  251,
      48,  31,  190, 95,  241, 255, 47,  236, 113, 209, 112, 228, 213, 254, 8,  81,  68,
      25,  192, 254, 226, 4,   191, 224, 32,  192, 15,  17,  240, 8,   0,   255};
  ASSERT_EQ(codes.bytes.size(), 64u + 4 + 4 + 4);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(codes.bytes[i]), wanted[i]) << i;
  }
  EXPECT_FLOAT_EQ(float_at(codes, 68), 0.4999989867210388f);
  EXPECT_FLOAT_EQ(float_at(codes, 72), 1.4999898672103882f);
}

TEST(Dequantize, BlocksOfZerosAndOfOneMagnitudeAreExact) {
  std::vector<float> values(2 * 64);
  for (std::size_t i = 0; i < 64; ++i) values[i] = i % 2 == 0 ? 0.75f : -0.75f;
  for (const QuantizedFormat format : all_formats) {
    const Codes codes = encoded(format, 2, 64, values);
    const auto numbers = numbers_of<float>(codes, 0, 2, 0, 64);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(numbers[i], values[i], 1e-6) << i;
  }
  std::vector<float> alike(64, -3.0f);
  EXPECT_EQ(numbers_of<float>(encoded(QuantizedFormat::nf4, 1, 64, alike), 0, 1, 0, 64), alike);
}

TEST(Dequantize, AnElementThatIsNotFiniteShowsInTheScale) {
  for (const float bad : {INFINITY, -INFINITY, NAN, -NAN}) {
    std::vector<float> values(64, 1.0f);
    values[17] = bad;
    std::vector<std::byte> codes(64);
    float scale = 0;
    cpu::encode_nf4(values.data(), codes.data(), &scale, 1);
    EXPECT_FALSE(std::isfinite(scale)) << bad;
    EXPECT_FALSE(std::isfinite(cpu::encode_int8_row(values.data(), codes.data(), 64))) << bad;
  }
}

TEST(Dequantize, RefusesDtypesWithoutNumbers) {
  const Codes codes = encoded(QuantizedFormat::nf4, 1, 64, std::vector<float>(64, 1));
  std::vector<double> out(64);
  EXPECT_THROW(cpu::dequantize({.format = codes.format,
                                .weight = codes.bytes.data(),
                                .out = out.data(),
                                .rows = 1,
                                .columns = 64,
                                .first_row = 0,
                                .row_count = 1,
                                .first_column = 0,
                                .column_count = 64,
                                .dtype = float64}),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels::testing
