// Copies between strided arrays: by elements in the order of `out`, or by tiles in shared memory if
// `in` is adjacent in another dimension.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/strided.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int copy_threads = 256;
constexpr int copies_of_a_thread = 4;

// out[o] = in[i]. T is a word of up to 16 bytes. Bytes: read and write each element once.
template <class T>
__global__ void strided_copy_kernel(StridedShape<2> shape, std::int64_t n, const T* in, T* out) {
  constexpr std::int64_t tile = copy_threads * copies_of_a_thread;
  for (std::int64_t start = blockIdx.x * tile; start < n; start += gridDim.x * tile) {
#pragma unroll
    for (int k = 0; k < copies_of_a_thread; ++k) {
      const std::int64_t i = start + k * copy_threads + static_cast<int>(threadIdx.x);
      if (i >= n) continue;
      std::int64_t offset[2];
      strided_offsets(shape, shape.dimensions, i, offset);
      out[offset[1]] = in[offset[0]];
    }
  }
}

constexpr int tile_side = 32;
constexpr int tile_rows = 8;  // of threads
template <class T>
struct TransposeTile {
  T value[tile_side][tile_side + 1];
};

// out[outer][c * out_stride + r] = in[outer][r * in_stride + c], one tile of 32 x 32 for each block
// at a time. Bytes: read and write each element once.
template <class T>
__global__ void transpose_kernel(StridedShape<2> outer, std::int64_t tiles, std::int64_t rows,
                                 std::int64_t columns, std::int64_t in_stride,
                                 std::int64_t out_stride, const T* in, T* out) {
  auto& shared = shared_memory<TransposeTile<T>>();
  const std::int64_t row_tiles = (rows + tile_side - 1) / tile_side;
  const std::int64_t column_tiles = (columns + tile_side - 1) / tile_side;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Quotient across = divide(tile, column_tiles);
    const Quotient down = divide(across.quotient, row_tiles);
    const std::int64_t first_column = across.remainder * tile_side,
                       first_row = down.remainder * tile_side;
    std::int64_t offset[2];
    strided_offsets(outer, outer.dimensions, down.quotient, offset);
#pragma unroll
    for (int k = y; k < tile_side; k += tile_rows) {
      const std::int64_t row = first_row + k, column = first_column + x;
      if (row < rows && column < columns)
        shared.value[k][x] = in[offset[0] + row * in_stride + column];
    }
    __syncthreads();
#pragma unroll
    for (int k = y; k < tile_side; k += tile_rows) {
      const std::int64_t row = first_row + x, column = first_column + k;
      if (row < rows && column < columns)
        out[offset[1] + column * out_stride + row] = shared.value[x][k];
    }
    __syncthreads();
  }
}

// The dimension in which `in` is adjacent, if it is not the inner one of `out`; else -1.
int transposed_column(const StridedShape<2>& shape) {
  const int inner = shape.dimensions - 1;
  if (shape.strides[1][inner] != 1 || shape.strides[0][inner] <= 1) return -1;
  for (int i = 0; i < inner; ++i) {
    if (shape.strides[0][i] == 1) return i;
  }
  return -1;
}

template <class T>
void copy_of(const StridedCopy& a, const StridedShape<2>& shape, Context& context) {
  const auto* in = static_cast<const T*>(a.in);
  auto* out = static_cast<T*>(a.out);
  const std::int64_t n = shape.elements();
  const Access read = reads(in, span_bytes(shape, 0, sizeof(T)));
  const Access write = writes(out, span_bytes(shape, 1, sizeof(T)));
  const int column = transposed_column(shape);
  if (column < 0) {
    launch(context, {"strided_copy", {n}, {read, write}},
           {blocks_for(n, copy_threads * copies_of_a_thread), copy_threads}, strided_copy_kernel<T>,
           shape, n, in, out);
    return;
  }
  const int inner = shape.dimensions - 1;
  StridedShape<2> outer;
  for (int i = 0; i < inner; ++i) {
    if (i == column) continue;
    outer.sizes[outer.dimensions] = shape.sizes[i];
    for (int k = 0; k < 2; ++k) outer.strides[k][outer.dimensions] = shape.strides[k][i];
    ++outer.dimensions;
  }
  const std::int64_t rows = shape.sizes[inner], columns = shape.sizes[column];
  const std::int64_t tiles = outer.elements() * ((rows + tile_side - 1) / tile_side) *
                             ((columns + tile_side - 1) / tile_side);
  launch(context, {"strided_copy transpose", {outer.elements(), rows, columns}, {read, write}},
         {blocks_for(tiles, 1), dim3(tile_side, tile_rows)}, transpose_kernel<T>, outer, tiles,
         rows, columns, shape.strides[0][inner], shape.strides[1][column], in, out);
}

}  // namespace

void strided_copy(const StridedCopy& a, Queue queue) {
  if (a.shape.elements() == 0) return;
  Context& context = context_of(queue);
  const WidenedCopy wide = widened(a, 16);
  switch (wide.element) {
    case 1:
      return copy_of<std::uint8_t>(a, wide.shape, context);
    case 2:
      return copy_of<std::uint16_t>(a, wide.shape, context);
    case 4:
      return copy_of<std::uint32_t>(a, wide.shape, context);
    case 8:
      return copy_of<uint2>(a, wide.shape, context);
    default:
      return copy_of<uint4>(a, wide.shape, context);
  }
}

}  // namespace tessera::kernels::cuda
