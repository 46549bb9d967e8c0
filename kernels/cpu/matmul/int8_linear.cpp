// Products with a matrix of 8-bit integers: pairs of 16-bit products are added to 32-bit sums,
// which all processors do exactly. (Instructions for bytes saturate where VNNI is missing.)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/int8_linear.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/matmul/int8_linear.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Integers that a row's length is a multiple of: the most 16-bit lanes of a vector.
inline constexpr std::int64_t int8_unit = 32;
using Int16s = hn::CappedTag<std::int16_t, int8_unit>;
using Int32s = hn::Repartition<std::int32_t, Int16s>;

// A share of the work: `x` are the integers of all rows, [rows, padded].
struct Int8Share {
  const cpu::Int8Linear& a;
  const std::int16_t* x;
  const float* scales;  // of the rows of x
  std::int64_t padded;
  std::int64_t row_bytes;
};

// The results of `row_count` rows and `column_count` columns.
template <int row_count, int column_count>
HWY_INLINE void Int8Tile(const Int8Share& s, std::int64_t row, std::int64_t column, float* out,
                         std::int64_t out_stride) {
  const Int16s d16;
  const Int32s d32;
  const hn::Rebind<std::int8_t, Int16s> d8;
  const std::byte* const w = s.a.w + column * s.row_bytes;
  const std::int16_t* const x = s.x + row * s.padded;
  hn::Vec<Int32s> sums[row_count][column_count];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = hn::Zero(d32);
  }
  const auto step = static_cast<std::int64_t>(hn::Lanes(d16));
  for (std::int64_t k = 0; k < s.padded; k += step) {
    hn::Vec<Int16s> weights[column_count];
    for (int c = 0; c < column_count; ++c) {
      const auto* const at = reinterpret_cast<const std::int8_t*>(w + c * s.row_bytes + k);
      weights[c] = hn::PromoteTo(d16, hn::LoadU(d8, at));
    }
    for (int r = 0; r < row_count; ++r) {
      const auto value = hn::LoadU(d16, x + r * s.padded + k);
      for (int c = 0; c < column_count; ++c) {
        auto unused = hn::Zero(d32);
        sums[r][c] = hn::ReorderWidenMulAccumulate(d32, value, weights[c], sums[r][c], unused);
        sums[r][c] = hn::Add(sums[r][c], unused);
      }
    }
  }
  for (int c = 0; c < column_count; ++c) {
    float scale = 0;
    std::memcpy(&scale, w + c * s.row_bytes + s.padded, sizeof scale);
    for (int r = 0; r < row_count; ++r) {
      const std::int32_t sum = hn::GetLane(hn::SumOfLanes(d32, sums[r][c]));
      out[r * out_stride + c] = static_cast<float>(sum) * (s.scales[row + r] * scale);
    }
  }
}

template <int row_count>
HWY_INLINE void Int8Columns(const Int8Share& s, std::int64_t row, std::int64_t first,
                            std::int64_t last, float* out, std::int64_t out_stride) {
  // One row is bound by memory, which is read fastest from several places; four rows fill the
  // registers with two columns.
  constexpr int columns = row_count == 1 ? 8 : 2;
  std::int64_t column = first;
  for (; column + columns <= last; column += columns) {
    Int8Tile<row_count, columns>(s, row, column, out + column - first, out_stride);
  }
  for (; column < last; ++column) {
    Int8Tile<row_count, 1>(s, row, column, out + column - first, out_stride);
  }
}

// Columns [first, last) of `row_count` rows as fp32, without the bias.
void Int8Rows(const cpu::Int8Linear& a, const std::int16_t* integers, const float* scales,
              std::int64_t row, std::int64_t row_count, std::int64_t first, std::int64_t last,
              float* out) {
  const std::int64_t row_bytes = cpu::int8_row_bytes(a.inputs);
  const std::int64_t padded = row_bytes - static_cast<std::int64_t>(sizeof(float));
  const Int8Share s{a, integers, scales, padded, row_bytes};
  const std::int64_t stride = last - first;
  std::int64_t r = 0;
  for (; r + 4 <= row_count; r += 4) {
    Int8Columns<4>(s, row + r, first, last, out + r * stride, stride);
  }
  for (; r < row_count; ++r) Int8Columns<1>(s, row + r, first, last, out + r * stride, stride);
}

// Returns the scale of a row.
float Int8Quantize(const float* x, std::int64_t inputs, std::int64_t padded, std::int16_t* out) {
  const FloatTag d;
  const hn::Rebind<std::int32_t, FloatTag> di;
  const hn::Rebind<std::int16_t, FloatTag> d16;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  auto not_numbers = hn::Zero(d);  // x * 0 is NaN for Inf and NaN, which Max may ignore
  std::int64_t i = 0;
  for (; i + step <= inputs; i += step) {
    const auto value = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(value));
    not_numbers = hn::MulAdd(value, hn::Zero(d), not_numbers);
  }
  float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  float bad = hn::GetLane(hn::SumOfLanes(d, not_numbers));
  for (std::int64_t tail = i; tail < inputs; ++tail) {
    most = std::max(most, std::abs(x[tail]));
    bad += x[tail] * 0.0f;
  }
  const float scale = most / 127.0f;
  const float inverse = 127.0f / most;
  if (std::isnan(bad) || !std::isfinite(inverse)) {
    std::fill_n(out, padded, std::int16_t{0});
    // The products of numbers too small for an inverse are 0.
    return std::isnan(bad) ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  const auto factor = hn::Set(d, inverse);
  for (i = 0; i + step <= inputs; i += step) {
    const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), factor));
    hn::StoreU(hn::DemoteTo(d16, hn::Max(hn::Min(whole, hn::Set(di, 127)), hn::Set(di, -127))), d16,
               out + i);
  }
  for (; i < inputs; ++i) {
    const float whole = std::nearbyint(x[i] * inverse);
    out[i] = static_cast<std::int16_t>(std::clamp(whole, -127.0f, 127.0f));
  }
  std::fill(out + inputs, out + padded, std::int16_t{0});
  return scale;
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(Int8Rows);
HWY_EXPORT(Int8Quantize);

// Rows of x, and columns and bytes of the matrix, that are computed before others: the matrix's
// stay in the second-level cache.
constexpr std::int64_t int8_row_tile = 64;
constexpr std::int64_t int8_column_tile = 512;
constexpr std::int64_t int8_tile_bytes = std::int64_t{128} << 10;

std::int64_t padded_inputs(std::int64_t inputs) {
  return (inputs + 31) / 32 * 32;
}

template <class T>
void store_int8_result(const cpu::Int8Linear& a, const float* from, std::int64_t row,
                       std::int64_t first, std::int64_t columns) {
  const T* const bias = static_cast<const T*>(a.bias);
  T* const to = static_cast<T*>(a.out) + row * a.outputs + first;
  for (std::int64_t i = 0; i < columns; ++i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      to[i] = bias == nullptr ? from[i] : from[i] + bias[first + i];
    } else {
      to[i] = from_float<T>(bias == nullptr ? from[i] : from[i] + to_float(bias[first + i]));
    }
  }
}

void store_int8_results(const cpu::Int8Linear& a, const float* from, std::int64_t row,
                        std::int64_t first, std::int64_t columns) {
  if (a.dtype == DType::float32) return store_int8_result<float>(a, from, row, first, columns);
  if (a.dtype == DType::bfloat16) return store_int8_result<BFloat16>(a, from, row, first, columns);
  store_int8_result<Float16>(a, from, row, first, columns);
}

// The rows of x as integers [rows, padded], and their scales.
void quantize_rows(const cpu::Int8Linear& a, std::int64_t padded, std::int16_t* integers,
                   float* scales) {
  const std::int64_t grain = std::max<std::int64_t>(1, (std::int64_t{1} << 15) / padded);
  parallel_for(0, a.rows, grain, [&](std::int64_t first, std::int64_t last) {
    static thread_local cpu::ScratchBuffer wide;
    for (std::int64_t row = first; row < last; ++row) {
      const auto* at = static_cast<const std::byte*>(a.x) +
                       row * a.inputs * static_cast<std::int64_t>(size_of(a.dtype));
      const auto* values = reinterpret_cast<const float*>(at);
      if (a.dtype != DType::float32) {
        auto* const copy = wide.get<float>(a.inputs);
        cpu::cast({.in = at,
                   .out = reinterpret_cast<std::byte*>(copy),
                   .n = a.inputs,
                   .in_dtype = a.dtype,
                   .out_dtype = DType::float32});
        values = copy;
      }
      scales[row] =
          HWY_DYNAMIC_DISPATCH(Int8Quantize)(values, a.inputs, padded, integers + row * padded);
    }
  });
}

}  // namespace

std::int64_t cpu::int8_row_bytes(std::int64_t inputs) {
  return padded_inputs(inputs) + static_cast<std::int64_t>(sizeof(float));
}

void cpu::finish_int8_row(std::byte* row, std::int64_t inputs, float scale) {
  const std::int64_t padded = padded_inputs(inputs);
  std::fill(row + inputs, row + padded, std::byte{0});
  std::memcpy(row + padded, &scale, sizeof scale);
}

void cpu::int8_linear(const Int8Linear& a) {
  TESSERA_REQUIRE(
      a.dtype == DType::float32 || a.dtype == DType::bfloat16 || a.dtype == DType::float16,
      "int8_linear: rows of {}", name_of(a.dtype));
  TESSERA_REQUIRE(a.rows >= 0 && a.outputs >= 0 && a.inputs > 0 && a.inputs <= most_int8_inputs,
                  "int8_linear: sizes {}, {} and {}; at most {} inputs", a.rows, a.outputs,
                  a.inputs, most_int8_inputs);
  const std::int64_t padded = padded_inputs(a.inputs);
  if (a.rows == 0 || a.outputs == 0) return;
  static thread_local cpu::ScratchBuffer of_integers, of_scales;
  auto* const integers = of_integers.get<std::int16_t>(a.rows * padded);
  auto* const scales = of_scales.get<float>(a.rows);
  quantize_rows(a, padded, integers, scales);
  const std::int64_t columns = std::clamp<std::int64_t>(
      int8_tile_bytes / int8_row_bytes(a.inputs) / 8 * 8, 8, int8_column_tile);
  const std::int64_t tiles = (a.outputs + columns - 1) / columns;
  const auto share = [&](std::int64_t first_tile, std::int64_t last_tile) {
    static thread_local cpu::ScratchBuffer of_results;
    auto* const results = of_results.get<float>(int8_row_tile * columns);
    for (std::int64_t tile = first_tile; tile < last_tile; ++tile) {
      const std::int64_t first = tile * columns;
      const std::int64_t last = std::min(a.outputs, first + columns);
      for (std::int64_t row = 0; row < a.rows; row += int8_row_tile) {
        const std::int64_t rows = std::min(int8_row_tile, a.rows - row);
        HWY_DYNAMIC_DISPATCH(Int8Rows)(a, integers, scales, row, rows, first, last, results);
        for (std::int64_t r = 0; r < rows; ++r) {
          store_int8_results(a, results + r * (last - first), row + r, first, last - first);
        }
      }
    }
  };
  const std::int64_t work = std::max<std::int64_t>(1, a.rows * columns * padded);
  parallel_for(0, tiles, std::max<std::int64_t>(1, (std::int64_t{1} << 18) / work), share);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
