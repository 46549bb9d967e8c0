// Matrix products of 16-bit types on tensor cores (mma.sync). A block's tile of the result is in
// the registers of its warps; tiles of the operands are copied to shared memory asynchronously, a
// few steps ahead. One source for both types, compiled once for each (matmul_bfloat16.cu,
// matmul_float16.cu).
#pragma once

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/types.h"
#include "kernels/cuda/matmul/matmul_kernels.h"
#include "kernels/cuda/matmul/matmul_tile.h"

namespace tessera::kernels::cuda::tensor_core {

inline constexpr int chunk = 8;      // 16-bit elements of an asynchronous copy and a matrix's row
inline constexpr int depth = 32;     // elements along k of a step
inline constexpr int stages = 4;     // steps in shared memory: one in use, the others in transfer
inline constexpr int mma_rows = 16;  // of one tensor core instruction
inline constexpr int mma_columns = 8;
inline constexpr int mma_depth = 16;

// warps_down x warps_across warps, each with (16 * blocks_down) x (8 * blocks_across) of the tile.
template <int warps_down_, int warps_across_, int blocks_down_, int blocks_across_>
struct Tile {
  static constexpr int warps_across = warps_across_;
  static constexpr int blocks_down = blocks_down_, blocks_across = blocks_across_;
  static constexpr int warp_rows = mma_rows * blocks_down;
  static constexpr int warp_columns = mma_columns * blocks_across;
  static constexpr int extent = warps_down_ * warp_rows;  // rows and columns of the tile
  static constexpr int threads = warp_size * warps_down_ * warps_across_;
  static_assert(warps_across_ * warp_columns == extent && blocks_across % 2 == 0);
};
using LargeTile = Tile<2, 4, 4, 4>;  // 128 x 128
using SmallTile = Tile<2, 2, 2, 4>;  // 64 x 64

struct Product {
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  int m, n, k;
  std::int64_t lda, ldb, ldc;
  std::int64_t stride_a, stride_b, stride_c;
  float alpha;
  bool accumulate;
  bool out_is_float;
  bool chunks_of_a, chunks_of_b;  // rows begin on 16 bytes
  bool pairs_of_c;                // rows begin on two elements
};

__device__ __forceinline__ void multiply(__nv_bfloat16, float (&sums)[4],
                                         const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  mma_bfloat16(sums, a, b, sums);
}
__device__ __forceinline__ void multiply(__half, float (&sums)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
  mma_float16(sums, a, b, sums);
}

// The layout of a step of one operand in shared memory: as in memory, rows of `columns` elements.
// k_contiguous: neighbours are neighbours along k (a as stored, b transposed). A chunk of padding
// spreads the rows over the banks, so the 8 rows of a matrix load have no bank conflict.
template <class Tile, bool k_contiguous>
struct StepLayout {
  static constexpr int rows = k_contiguous ? Tile::extent : depth;
  static constexpr int columns = k_contiguous ? depth : Tile::extent;
  static constexpr int stride = columns + chunk;
  static constexpr int elements = rows * stride;
  static constexpr int row_chunks = columns / chunk;
  static constexpr int thread_chunks = rows * row_chunks / Tile::threads;
  static_assert(rows * row_chunks % Tile::threads == 0);

  // The offset of the element `along` rows of a (columns of b) and `k` from the tile's corner.
  static __device__ __forceinline__ int offset(int along, int k) {
    return k_contiguous ? along * stride + k : k * stride + along;
  }
};

// A thread's part in copying an operand's tile to shared memory.
template <class T, class Tile, bool k_contiguous>
class Operand {
 public:
  using Layout = StepLayout<Tile, k_contiguous>;

  // `first`: the tile's first row of a (column of b), of `extent` in all.
  __device__ Operand(const T* matrix, std::int64_t leading, int first, int extent, int k)
      : left_along_rows_((k_contiguous ? extent - first : k) - row(0)),
        left_along_columns_((k_contiguous ? k : extent - first) - column()),
        source_(k_contiguous ? matrix + (first + row(0)) * leading + column()
                             : matrix + row(0) * leading + (first + column())) {}

  // Begins to copy the next step into `step`, with zeros beyond the matrix. `chunks`: every row
  // begins on 16 bytes; otherwise, and for the matrix's last columns if they do not fill a chunk,
  // elements are copied one by one, synchronously.
  __device__ __forceinline__ void copy_next(T* step, std::int64_t leading, bool chunks) {
    const bool by_chunks = chunks && (left_along_columns_ >= chunk || left_along_columns_ <= 0);
#pragma unroll
    for (int i = 0; i < Layout::thread_chunks; ++i) {
      const bool inside = row(i) - row(0) < left_along_rows_;
      const T* from = source_ + (row(i) - row(0)) * leading;
      T* to = step + row(i) * Layout::stride + column();
      if (by_chunks) {
        copy_async_16(to, from, inside && left_along_columns_ > 0);
      } else {
        copy_elements(to, from, inside ? left_along_columns_ : 0);
      }
    }
    if constexpr (k_contiguous) {
      source_ += depth;
      left_along_columns_ -= depth;
    } else {
      source_ += depth * leading;
      left_along_rows_ -= depth;
    }
  }

 private:
  // The row of the thread's chunk i; all its chunks are in one column of chunks.
  static __device__ __forceinline__ int row(int i) {
    static_assert(Tile::threads % Layout::row_chunks == 0);
    return static_cast<int>(threadIdx.x) / Layout::row_chunks +
           i * (Tile::threads / Layout::row_chunks);
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % Layout::row_chunks * chunk;
  }
  static __device__ __forceinline__ void copy_elements(T* to, const T* from, int count) {
    Vector<T> elements;
#pragma unroll
    for (int i = 0; i < chunk; ++i) elements.value[i] = i < count ? from[i] : from_compute<T>(0);
    store_vector(to, elements);
  }

  int left_along_rows_, left_along_columns_;
  const T* source_;
};

// Fragments of 16 rows of a, from k on: matrices (rows 0-7, 8-15) x (k 0-7, 8-15).
template <class Layout, bool k_contiguous, class T>
__device__ __forceinline__ void load_a(std::uint32_t (&fragment)[4], const T* step, int row, int k,
                                       int lane) {
  const int within = lane % 8, second_rows = lane / 8 % 2 * 8, second_k = lane / 16 * 8;
  if constexpr (k_contiguous) {
    load_matrix_x4(fragment, step + Layout::offset(row + second_rows + within, k + second_k));
  } else {
    load_matrix_x4_transposed(fragment,
                              step + Layout::offset(row + second_rows, k + second_k + within));
  }
}

// Fragments of 16 columns of b, from k on, for two instructions: (k 0-7, 8-15) of columns 0-7, then
// of columns 8-15.
template <class Layout, bool k_contiguous, class T>
__device__ __forceinline__ void load_b(std::uint32_t (&first)[2], std::uint32_t (&second)[2],
                                       const T* step, int column, int k, int lane) {
  const int within = lane % 8, second_k = lane / 8 % 2 * 8, second_columns = lane / 16 * 8;
  std::uint32_t fragment[4];
  if constexpr (k_contiguous) {
    load_matrix_x4(fragment, step + Layout::offset(column + second_columns + within, k + second_k));
  } else {
    load_matrix_x4_transposed(
        fragment, step + Layout::offset(column + second_columns, k + second_k + within));
  }
  first[0] = fragment[0];
  first[1] = fragment[1];
  second[0] = fragment[2];
  second[1] = fragment[3];
}

template <class Tile>
using Accumulators = float[Tile::blocks_down][Tile::blocks_across][4];

// Adds the products of a step to a warp's sums.
template <class T, class Tile, bool transpose_a, bool transpose_b>
__device__ __forceinline__ void multiply_step(Accumulators<Tile>& sums, const T* a, const T* b,
                                              int first_row, int first_column) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int k = 0; k < depth; k += mma_depth) {
    std::uint32_t rows[Tile::blocks_down][4], columns[Tile::blocks_across][2];
#pragma unroll
    for (int i = 0; i < Tile::blocks_down; ++i) {
      load_a<StepLayout<Tile, !transpose_a>, !transpose_a>(rows[i], a, first_row + i * mma_rows, k,
                                                           lane);
    }
#pragma unroll
    for (int j = 0; j < Tile::blocks_across; j += 2) {
      load_b<StepLayout<Tile, transpose_b>, transpose_b>(columns[j], columns[j + 1], b,
                                                         first_column + j * mma_columns, k, lane);
    }
#pragma unroll
    for (int i = 0; i < Tile::blocks_down; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::blocks_across; ++j) multiply(T{}, sums[i][j], rows[i], columns[j]);
    }
  }
}

// Two neighbouring results.
template <class Out>
struct alignas(2 * sizeof(Out)) Pair {
  Out value[2];
};

// alpha * sums (+ c) (+ bias), rounded once, of columns `column` and the next.
template <class T, class Out>
__device__ __forceinline__ void write_pair(const Product& p, Out* c, int column, float first,
                                           float second) {
  const auto result = [&](int i, float sum, Out before) {
    float value = p.alpha * sum;
    if (p.accumulate) value += to_compute(before);
    if (p.bias != nullptr) value += to_compute(static_cast<const T*>(p.bias)[column + i]);
    return from_compute<Out>(value);
  };
  if (p.pairs_of_c && column + 1 < p.n) {
    auto* const both = reinterpret_cast<Pair<Out>*>(c);
    const Pair<Out> before = p.accumulate ? *both : Pair<Out>{};
    *both = {{result(0, first, before.value[0]), result(1, second, before.value[1])}};
    return;
  }
  const Out zero = from_compute<Out>(0);
  c[0] = result(0, first, p.accumulate ? c[0] : zero);
  if (column + 1 < p.n) c[1] = result(1, second, p.accumulate ? c[1] : zero);
}

// A warp's sums are in its lanes in the layout of the tensor core: lane l has columns 2 * (l % 4)
// and the next of rows l / 4 and l / 4 + 8.
template <class T, class Out, class Tile>
__device__ __forceinline__ void write_tile(const Product& p, Out* c, int first_row,
                                           int first_column, const Accumulators<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int i = 0; i < Tile::blocks_down; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + i * mma_rows + half * 8 + lane / 4;
      if (row >= p.m) continue;
#pragma unroll
      for (int j = 0; j < Tile::blocks_across; ++j) {
        const int column = first_column + j * mma_columns + lane % 4 * 2;
        if (column >= p.n) continue;
        write_pair<T>(p, c + row * p.ldc + column, column, sums[i][j][2 * half],
                      sums[i][j][2 * half + 1]);
      }
    }
  }
}

template <class Tile, bool transpose_a, bool transpose_b>
inline constexpr std::size_t stage_elements =
    StepLayout<Tile, !transpose_a>::elements + StepLayout<Tile, transpose_b>::elements;

template <class T, class Tile, bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(Tile::threads, 2) matmul_kernel(Product p) {
  constexpr std::size_t stage = stage_elements<Tile, transpose_a, transpose_b>;
  constexpr int elements_of_a = StepLayout<Tile, !transpose_a>::elements;
  T* const buffers = dynamic_shared_memory<T>();
  const TilePosition tile =
      tile_of_block(static_cast<int>(blockIdx.x), (p.m + Tile::extent - 1) / Tile::extent,
                    (p.n + Tile::extent - 1) / Tile::extent);
  const std::int64_t batch = blockIdx.y;
  Operand<T, Tile, !transpose_a> a(static_cast<const T*>(p.a) + batch * p.stride_a, p.lda,
                                   tile.row * Tile::extent, p.m, p.k);
  Operand<T, Tile, transpose_b> b(static_cast<const T*>(p.b) + batch * p.stride_b, p.ldb,
                                  tile.column * Tile::extent, p.n, p.k);
  const auto copy_next = [&](int into) {
    a.copy_next(buffers + into * stage, p.lda, p.chunks_of_a);
    b.copy_next(buffers + into * stage + elements_of_a, p.ldb, p.chunks_of_b);
  };

  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int warp_row = warp / Tile::warps_across * Tile::warp_rows;
  const int warp_column = warp % Tile::warps_across * Tile::warp_columns;
  const int steps = (p.k + depth - 1) / depth;
  // Groups of copies are counted, so every step commits one even if it is empty.
#pragma unroll
  for (int step = 0; step < stages - 1; ++step) {
    if (step < steps) copy_next(step);
    copy_async_commit();
  }
  Accumulators<Tile> sums = {};
  int current_stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<stages - 2>();
    // All threads' parts of this step have arrived, and no thread reads the stage of the previous
    // step.
    __syncthreads();
    if (step + stages - 1 < steps) copy_next(current_stage == 0 ? stages - 1 : current_stage - 1);
    copy_async_commit();
    const T* const current = buffers + current_stage * stage;
    current_stage = current_stage + 1 == stages ? 0 : current_stage + 1;
    multiply_step<T, Tile, transpose_a, transpose_b>(sums, current, current + elements_of_a,
                                                     warp_row, warp_column);
  }

  const int row = tile.row * Tile::extent + warp_row;
  const int column = tile.column * Tile::extent + warp_column;
  if (p.out_is_float) {
    write_tile<T, float, Tile>(p, static_cast<float*>(p.c) + batch * p.stride_c, row, column, sums);
  } else {
    write_tile<T, T, Tile>(p, static_cast<T*>(p.c) + batch * p.stride_c, row, column, sums);
  }
}

template <class T>
Product arguments_of(const Matmul& p, std::int64_t first) {
  const std::size_t out_bytes = size_of(p.out_dtype);
  return {static_cast<const T*>(p.a) + first * p.stride_a,
          static_cast<const T*>(p.b) + first * p.stride_b,
          static_cast<std::byte*>(p.c) + first * p.stride_c * static_cast<std::int64_t>(out_bytes),
          p.bias,
          static_cast<int>(p.m),
          static_cast<int>(p.n),
          static_cast<int>(p.k),
          p.lda,
          p.ldb,
          p.ldc,
          p.stride_a,
          p.stride_b,
          p.stride_c,
          p.alpha,
          p.accumulate,
          p.out_dtype == DType::float32,
          rows_aligned(p.a, p.lda, p.batch, p.stride_a, chunk, sizeof(T)),
          rows_aligned(p.b, p.ldb, p.batch, p.stride_b, chunk, sizeof(T)),
          rows_aligned(p.c, p.ldc, p.batch, p.stride_c, 2, out_bytes)};
}

template <class T, class Tile>
void run_tiles(const Matmul& p, Context& context, const char* kernel) {
  const auto tiles =
      static_cast<unsigned>(tiles_of(p.m, Tile::extent) * tiles_of(p.n, Tile::extent));
  for_launches(p, [&](std::int64_t first, std::int64_t count) {
    for_transposes(p, [&](auto a, auto b) {
      constexpr bool transpose_a = decltype(a)::value, transpose_b = decltype(b)::value;
      launch(context,
             {kernel,
              {p.m, p.n, p.k, count},
              {reads(p.a, bytes_of_a(p)), reads(p.b, bytes_of_b(p)),
               reads(p.bias, bytes_of_bias(p)), writes(p.c, bytes_of_c(p))}},
             {dim3(tiles, static_cast<unsigned>(count)), dim3(Tile::threads),
              stages * stage_elements<Tile, transpose_a, transpose_b> * sizeof(T)},
             matmul_kernel<T, Tile, transpose_a, transpose_b>, arguments_of<T>(p, first));
    });
  });
}

template <class T>
void run(const Matmul& product, Context& context, const char* kernel) {
  if (tiles_fill_device(product, LargeTile::extent, context)) {
    run_tiles<T, LargeTile>(product, context, kernel);
  } else {
    run_tiles<T, SmallTile>(product, context, kernel);
  }
}

}  // namespace tessera::kernels::cuda::tensor_core
