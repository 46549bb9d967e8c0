// Sums over rows, column by column, in two passes: chunks of rows give partial sums, which are
// added in the order of chunks. The chunks depend only on the number of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row.h"

namespace tessera::kernels::cuda {

// Chunks have 32 rows, or more if that gave over 256 chunks: enough blocks to fill a GPU, with
// partial sums that are small compared to the input.
struct RowChunks {
  std::int64_t rows;
  std::int64_t chunk_rows;
  std::int64_t count;

  explicit RowChunks(std::int64_t rows_in_all)
      : rows(rows_in_all),
        chunk_rows(std::max<std::int64_t>(32, (rows_in_all + 255) / 256)),
        count((rows_in_all + chunk_rows - 1) / chunk_rows) {}
};

// A block is `column_warps` warps that work on the same columns; a lane has one vector of them.
inline constexpr int column_warps = 8;

template <class C, int outputs, int width>
struct ColumnPartials {
  C value[column_warps][outputs][width][warp_size];
};

// partials[output, chunk, column] = the sum of the chunk's terms, [outputs, chunks, columns] of
// Compute<T>. terms.add(row, first, sums) adds the terms of columns [first, first + width) of the
// row, with width elements of T in a vector, to sums[output][k]; terms of columns that do not exist
// are ignored. Bytes: the terms' reads, once; the partial sums.
template <class T, int outputs, class Terms>
__global__ void __launch_bounds__(warp_size* column_warps, 2)
    column_sums_kernel(Terms terms, std::int64_t rows, std::int64_t chunk_rows,
                       std::int64_t columns, Compute<T>* partials) {
  using C = Compute<T>;
  constexpr int width = Vector<T>::size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t block_first = static_cast<std::int64_t>(blockIdx.x) * warp_size * width;
  const std::int64_t first = block_first + lane * width;
  const std::int64_t begin = blockIdx.y * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  C sums[outputs][width] = {};
  if (first < columns) {
    for (std::int64_t row = begin + warp; row < end; row += column_warps) {
      terms.add(row, first, sums);
    }
  }
  auto& shared = shared_memory<ColumnPartials<C, outputs, width>>();
#pragma unroll
  for (int output = 0; output < outputs; ++output) {
#pragma unroll
    for (int k = 0; k < width; ++k) shared.value[warp][output][k][lane] = sums[output][k];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < outputs * width * warp_size;
       i += warp_size * column_warps) {
    const int output = i / (width * warp_size);
    const int column = i % (width * warp_size);
    if (block_first + column >= columns) continue;
    C sum = 0;
#pragma unroll
    for (int w = 0; w < column_warps; ++w) {
      sum += shared.value[w][output][column % width][column / width];
    }
    partials[(static_cast<std::int64_t>(output) * gridDim.y + blockIdx.y) * columns + block_first +
             column] = sum;
  }
}

// out[column] (+)= the sum over chunks of partials[chunk, column], rounded once. Bytes: read the
// partials.
template <class T>
__global__ void __launch_bounds__(warp_size* column_warps)
    combine_chunks_kernel(const Compute<T>* partials, std::int64_t chunks, std::int64_t columns,
                          T* out, bool accumulate) {
  using C = Compute<T>;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_size + lane;
  C sum = 0;
  if (column < columns) {
    for (std::int64_t chunk = warp; chunk < chunks; chunk += column_warps) {
      sum += partials[chunk * columns + column];
    }
  }
  auto& shared = shared_memory<ColumnPartials<C, 1, 1>>();
  shared.value[warp][0][0][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
#pragma unroll
  for (int w = 1; w < column_warps; ++w) sum += shared.value[w][0][0][lane];
  out[column] = from_compute<T>(accumulate ? to_compute(out[column]) + sum : sum);
}

// The launches. `accesses` are the reads of the terms; partials holds outputs * chunks.count *
// columns.
template <class T, int outputs, class Terms>
void launch_column_sums(Context& context, const char* kernel, const Terms& terms,
                        const RowChunks& chunks, std::int64_t columns, Compute<T>* partials,
                        std::initializer_list<Access> accesses) {
  constexpr std::int64_t block_columns = warp_size * Vector<T>::size;
  const dim3 grid{static_cast<unsigned>((columns + block_columns - 1) / block_columns),
                  static_cast<unsigned>(chunks.count)};
  launch(context, {kernel, {chunks.rows, columns}, accesses}, {grid, warp_size * column_warps},
         column_sums_kernel<T, outputs, Terms>, terms, chunks.rows, chunks.chunk_rows, columns,
         partials);
}
template <class T>
void launch_combine_chunks(Context& context, const char* kernel, const Compute<T>* partials,
                           std::int64_t chunks, std::int64_t columns, T* out, bool accumulate) {
  const auto out_bytes = columns * static_cast<std::int64_t>(sizeof(T));
  launch(context,
         {kernel,
          {chunks, columns},
          {reads(partials, chunks * columns * static_cast<std::int64_t>(sizeof(Compute<T>))),
           writes(out, out_bytes)}},
         {static_cast<unsigned>((columns + warp_size - 1) / warp_size), warp_size * column_warps},
         combine_chunks_kernel<T>, partials, chunks, columns, out, accumulate);
}

}  // namespace tessera::kernels::cuda
