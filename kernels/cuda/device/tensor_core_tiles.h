// 16-bit matrices in shared memory and their products on tensor cores.
//
// A warp computes 16 rows of a product. Its sums are in registers in the layout of mma.m16n8k16:
// sums[n][e] of lane l is row l / 4 + 8 * (e / 2), column 8 * n + 2 * (l % 4) + e % 2. The left
// operand of a further product has the same layout, so probabilities pass from one product into the
// next without leaving the registers.
#pragma once

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {

// Rows have 16 bytes of padding: the eight rows of a matrix that ldmatrix reads then begin in
// different banks, for every width that is a multiple of 32.
template <class T, int rows_, int columns_>
struct alignas(16) Tile {
  static_assert(sizeof(T) == 2 && rows_ % 16 == 0 && columns_ % 32 == 0);
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int stride = columns_ + 8;
  T value[rows_ * stride];

  __device__ __forceinline__ T* at(int row, int column) { return value + row * stride + column; }
  __device__ __forceinline__ const T* at(int row, int column) const {
    return value + row * stride + column;
  }
};

// A matrix in global memory: 16-byte aligned rows of `columns` elements, a multiple of 8.
template <class T>
struct GlobalRows {
  T* data;
  std::int64_t stride;  // elements
  int rows;
  int columns;
};

// Begins to copy `from` into the tile, with zeroes beyond its elements. All `threads` threads of
// the block call it.
template <int threads, class T, int rows, int columns>
__device__ __forceinline__ void copy_async(Tile<T, rows, columns>& to, GlobalRows<const T> from) {
  constexpr int chunk = Vector<T>::size;
  constexpr int row_chunks = columns / chunk;
  static_assert(rows * row_chunks % threads == 0);
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (threads % row_chunks == 0) {  // all chunks of a thread are in the same column
    constexpr int row_step = threads / row_chunks;
    const int column = thread % row_chunks * chunk;
    const int rows_left = column < from.columns ? from.rows - thread / row_chunks : 0;
    const T* source = from.data + (thread / row_chunks) * from.stride + column;
    T* const first = to.at(thread / row_chunks, column);
#pragma unroll
    for (int row = 0; row < rows; row += row_step) {
      copy_async_16(first + row * to.stride, source, row < rows_left);
      source += row_step * from.stride;
    }
  } else {
#pragma unroll
    for (int i = 0; i < rows * row_chunks / threads; ++i) {
      const int index = thread + i * threads;
      const int row = index / row_chunks;
      const int column = index % row_chunks * chunk;
      const bool there = row < from.rows && column < from.columns;
      copy_async_16(to.at(row, column), there ? from.data + row * from.stride + column : from.data,
                    there);
    }
  }
}

// sums += a * b of 16-bit operands, in fp32.
template <class T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    mma_bfloat16(sums, a, b, sums);
  } else {
    mma_float16(sums, a, b, sums);
  }
}

// Two numbers rounded to T, the first in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

// sums[16, b_rows] += rows [first_row, first_row + 16) of a, times the transpose of b.
template <class T, int a_rows, int b_rows, int columns>
__device__ __forceinline__ void multiply_transposed(float (&sums)[b_rows / 8][4],
                                                    const Tile<T, a_rows, columns>& a,
                                                    int first_row,
                                                    const Tile<T, b_rows, columns>& b) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const T* const a_row = a.at(first_row + lane % 16, lane / 16 * 8);
  const T* const b_row = b.at(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
  for (int k = 0; k < columns; k += 16) {
    std::uint32_t left[4];
    load_matrix_x4(left, a_row + k);
#pragma unroll
    for (int n = 0; n < b_rows / 8; n += 2) {
      std::uint32_t right[4];
      load_matrix_x4(right, b_row + n * 8 * b.stride + k);
      multiply_add<T>(sums[n], left, {right[0], right[1]});
      multiply_add<T>(sums[n + 1], left, {right[2], right[3]});
    }
  }
}

// sums[16, columns] += a[16, b_rows], which is rounded to T, times b.
template <class T, int b_rows, int columns>
__device__ __forceinline__ void multiply(float (&sums)[columns / 8][4],
                                         const float (&a)[b_rows / 8][4],
                                         const Tile<T, b_rows, columns>& b) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const T* const b_row = b.at(lane % 16, lane / 16 * 8);
#pragma unroll
  for (int k = 0; k < b_rows / 8; k += 2) {
    const std::uint32_t left[4] = {pack<T>(a[k][0], a[k][1]), pack<T>(a[k][2], a[k][3]),
                                   pack<T>(a[k + 1][0], a[k + 1][1]),
                                   pack<T>(a[k + 1][2], a[k + 1][3])};
#pragma unroll
    for (int n = 0; n < columns / 8; n += 2) {
      std::uint32_t right[4];
      load_matrix_x4_transposed(right, b_row + k * 8 * b.stride + n * 8);
      multiply_add<T>(sums[n], left, {right[0], right[1]});
      multiply_add<T>(sums[n + 1], left, {right[2], right[3]});
    }
  }
}

// Writes the warp's sums, rows [first_row, first_row + 16) of the block's result, to `to`, in
// stores of 16 bytes. They pass through those rows of the tile, which no other warp may use.
template <class T, int rows, int columns>
__device__ __forceinline__ void store_rows(Tile<T, rows, columns>& tile, int first_row,
                                           const float (&sums)[columns / 8][4], GlobalRows<T> to) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < columns / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const pair = tile.at(first_row + lane / 4 + 8 * half, 8 * n + 2 * (lane % 4));
      *reinterpret_cast<std::uint32_t*>(pair) = pack<T>(sums[n][2 * half], sums[n][2 * half + 1]);
    }
  }
  __syncwarp();
  constexpr int chunk = Vector<T>::size;
  constexpr int row_chunks = columns / chunk;
  for (int i = lane; i < 16 * row_chunks; i += warp_size) {
    const int row = first_row + i / row_chunks;
    const int column = i % row_chunks * chunk;
    if (row < to.rows && column < to.columns) {
      store_vector(to.data + row * to.stride + column, load_vector(tile.at(row, column)));
    }
  }
}

}  // namespace tessera::kernels::cuda
