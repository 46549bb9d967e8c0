// Numbers of frozen weights from their codes. A block of nf4 has only 16 different numbers, which
// are computed and rounded once for the block.
#include <algorithm>
#include <cstring>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

float float_at(const std::byte* place) {
  float value = 0;
  std::memcpy(&value, place, sizeof(value));
  return value;
}

float scale_of_nf4_block(const std::byte* weight, const Nf4Layout& layout, std::int64_t block) {
  const auto code = std::to_integer<std::size_t>(weight[layout.scale_codes + block]);
  const float factor = float_at(weight + layout.group_factors + 4 * (block / nf4_group));
  return nf4_scale_codes[code] * factor + float_at(weight + layout.mean);
}

// Elements [first, end) of the weight.
template <class T>
void nf4_run(const std::byte* weight, const Nf4Layout& layout, std::int64_t first, std::int64_t end,
             T* out) {
  while (first < end) {
    const std::int64_t block = first / nf4_block;
    const std::int64_t stop = std::min(end, (block + 1) * nf4_block);
    const float scale = scale_of_nf4_block(weight, layout, block);
    T numbers[16];
    for (std::size_t code = 0; code < 16; ++code) {
      numbers[code] = from_float<T>(nf4_values[code] * scale);
    }
    if (first % 2 == 1) {
      *out++ = numbers[std::to_integer<std::size_t>(weight[first / 2] & std::byte{15})];
      ++first;
    }
    for (; first + 1 < stop; first += 2, out += 2) {
      const auto pair = std::to_integer<std::size_t>(weight[first / 2]);
      out[0] = numbers[pair >> 4];
      out[1] = numbers[pair & 15];
    }
    if (first < stop) {
      *out++ = numbers[std::to_integer<std::size_t>(weight[first / 2] >> 4)];
      ++first;
    }
  }
}

template <class T>
void int8_run(const Dequantize& a, std::int64_t row, T* out) {
  const auto* const weight = static_cast<const std::byte*>(a.weight);
  const float scale = float_at(weight + a.rows * a.columns + 4 * row);
  const auto* const codes =
      reinterpret_cast<const std::int8_t*>(weight) + row * a.columns + a.first_column;
  for (std::int64_t i = 0; i < a.column_count; ++i) {
    out[i] = from_float<T>(static_cast<float>(codes[i]) * scale);
  }
}

template <class T>
void dequantize_as(const Dequantize& a) {
  const Nf4Layout layout(a.rows * a.columns);
  const auto* const weight = static_cast<const std::byte*>(a.weight);
  auto* const out = static_cast<T*>(a.out);
  const std::int64_t grain = std::max<std::int64_t>(1, parallel_grain / a.column_count);
  parallel_for(0, a.row_count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = a.first_row + i;
      T* const to = out + i * a.column_count;
      if (a.format == QuantizedFormat::int8) {
        int8_run(a, row, to);
      } else {
        const std::int64_t first = row * a.columns + a.first_column;
        nf4_run(weight, layout, first, first + a.column_count, to);
      }
    }
  });
}

}  // namespace

void dequantize(const Dequantize& a, Queue) {
  if (a.row_count <= 0 || a.column_count <= 0) return;
  switch (a.dtype) {
    case DType::float32:
      return dequantize_as<float>(a);
    case DType::bfloat16:
      return dequantize_as<BFloat16>(a);
    case DType::float16:
      return dequantize_as<Float16>(a);
    default:
      misuse("dequantize: to {}; fp32, bf16 and fp16 are possible", name_of(a.dtype));
  }
}

}  // namespace tessera::kernels::cpu
