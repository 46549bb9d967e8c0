// Numbers of frozen weights from their codes. Numbers have the CPU kernel's bits.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

// Neighbouring elements of a row that a thread writes: in one block of nf4, whose scale it computes
// once, if rows and the rectangle begin at multiples of it.
constexpr int dequantized_width = 8;

// The values of the nf4 codes and of the scales' codes. A kernel gets them as an argument, which
// lies in constant memory.
struct Nf4Numbers {
  float values[16];
  float scale_codes[256];
};

__device__ __forceinline__ float scale_of_block(const Nf4Numbers& numbers,
                                                const std::uint8_t* weight, const Nf4Layout& layout,
                                                std::int64_t block) {
  const float factor =
      *reinterpret_cast<const float*>(weight + layout.group_factors + 4 * (block / nf4_group));
  const float mean = *reinterpret_cast<const float*>(weight + layout.mean);
  return product(numbers.scale_codes[weight[layout.scale_codes + block]], factor) + mean;
}

// weight: the bytes of nf4; out: [row_count, column_count] of T. A thread has `dequantized_width`
// neighbouring elements of a row. Reads half a byte, writes sizeof(T) bytes an element.
template <class T>
__global__ void __launch_bounds__(map_threads)
    dequantize_nf4_kernel(Dequantize a, Nf4Layout layout, Nf4Numbers numbers, std::int64_t groups) {
  const auto* const weight = static_cast<const std::uint8_t*>(a.weight);
  auto* const out = static_cast<T*>(a.out);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * map_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * map_threads + threadIdx.x;
       i < a.row_count * groups; i += stride) {
    const auto [row, group] = divide(i, groups);
    const std::int64_t column = group * dequantized_width;
    const std::int64_t first = (a.first_row + row) * a.columns + a.first_column + column;
    std::int64_t block = -1;
    float scale = 0;
    for (int k = 0; k < dequantized_width && column + k < a.column_count; ++k) {
      const std::int64_t element = first + k;
      if (element / nf4_block != block) {
        block = element / nf4_block;
        scale = scale_of_block(numbers, weight, layout, block);
      }
      const int pair = weight[element / 2];
      const int code = element % 2 == 0 ? pair >> 4 : pair & 15;
      out[row * a.column_count + column + k] =
          from_compute<T>(product(numbers.values[code], scale));
    }
  }
}

// The same for int8: an element a thread. Reads a byte, writes sizeof(T) bytes an element.
template <class T>
__global__ void __launch_bounds__(map_threads) dequantize_int8_kernel(Dequantize a) {
  const auto* const codes = static_cast<const std::int8_t*>(a.weight);
  const auto* const scales = reinterpret_cast<const float*>(codes + a.rows * a.columns);
  auto* const out = static_cast<T*>(a.out);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * map_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * map_threads + threadIdx.x;
       i < a.row_count * a.column_count; i += stride) {
    const auto [row, column] = divide(i, a.column_count);
    const std::int64_t in_weight = a.first_row + row;
    const auto code = static_cast<float>(codes[in_weight * a.columns + a.first_column + column]);
    out[i] = from_compute<T>(product(code, scales[in_weight]));
  }
}

Nf4Numbers nf4_numbers() {
  Nf4Numbers numbers{};
  std::copy(nf4_values.begin(), nf4_values.end(), numbers.values);
  std::copy(nf4_scale_codes.begin(), nf4_scale_codes.end(), numbers.scale_codes);
  return numbers;
}

template <class T>
void dequantize_as(const Dequantize& a, Context& context) {
  const std::int64_t count = a.row_count * a.column_count;
  const auto run = [&](std::int64_t items, auto kernel, auto... more) {
    launch(context,
           {"dequantize",
            {a.rows, a.columns, a.row_count, a.column_count},
            {reads(a.weight, quantized_bytes(a.format, a.rows, a.columns)),
             writes(a.out, count * static_cast<std::int64_t>(sizeof(T)))}},
           {dim3(blocks_for(items, map_threads)), dim3(map_threads)}, kernel, a, more...);
  };
  if (a.format == QuantizedFormat::int8) return run(count, dequantize_int8_kernel<T>);
  const std::int64_t groups = (a.column_count + dequantized_width - 1) / dequantized_width;
  run(a.row_count * groups, dequantize_nf4_kernel<T>, Nf4Layout(a.rows * a.columns), nf4_numbers(),
      groups);
}

}  // namespace

void dequantize(const Dequantize& a, Queue queue) {
  if (a.row_count <= 0 || a.column_count <= 0) return;
  Context& context = context_of(queue);
  switch (a.dtype) {
    case DType::float32:
      return dequantize_as<float>(a, context);
    case DType::bfloat16:
      return dequantize_as<__nv_bfloat16>(a, context);
    case DType::float16:
      return dequantize_as<__half>(a, context);
    default:
      unsupported("dequantize", a.dtype);
  }
}

}  // namespace tessera::kernels::cuda
