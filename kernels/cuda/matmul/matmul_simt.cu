// Matrix products of fp32 and fp64 on ordinary cores. A block's tile of the result is in the
// registers of its threads; tiles of the operands pass through two buffers of shared memory.
#include <type_traits>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/types.h"
#include "kernels/cuda/matmul/matmul_kernels.h"
#include "kernels/cuda/matmul/matmul_tile.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int threads_across = 16;  // and the same number down
constexpr int block_threads = threads_across * threads_across;

// A thread has `pieces` x `pieces` squares of a vector's width, distributed over the tile so that
// neighbouring threads read neighbouring vectors of shared memory.
template <class T, int pieces>
struct Tile {
  static constexpr int width = Vector<T>::size;
  static constexpr int own = pieces * width;                    // a thread's rows, and columns
  static constexpr int extent = threads_across * own;           // rows and columns of the tile
  static constexpr int depth = block_threads * width / extent;  // k at once: a vector a thread
  static constexpr int stride = extent + width;  // one vector of padding: no bank conflicts
  struct Buffers {
    alignas(16) T a[2][depth][stride];
    alignas(16) T b[2][depth][stride];
  };
};

template <class T>
struct SimtProduct {
  const T* a;
  const T* b;
  T* c;
  const T* bias;
  int m, n, k;
  std::int64_t lda, ldb, ldc;
  std::int64_t stride_a, stride_b, stride_c;
  T alpha;
  bool accumulate;
  bool vectors_of_a, vectors_of_b, vectors_of_c;  // rows begin on 16 bytes
};

// The tile of one operand: a thread's vector of each step, in registers between memory and shared
// memory. k_contiguous: memory neighbours are neighbours along k (a as stored, b transposed).
template <class T, int pieces, bool k_contiguous>
class Operand {
  using Shape = Tile<T, pieces>;
  static constexpr int width = Shape::width;
  static constexpr int row_vectors = (k_contiguous ? Shape::depth : Shape::extent) / width;

 public:
  // `first`: the tile's first row of a (column of b) of `extent` in all.
  __device__ Operand(const T* matrix, std::int64_t leading, int first, int extent, int k)
      : left_along_rows_((k_contiguous ? extent - first : k) - row()),
        left_along_columns_((k_contiguous ? k : extent - first) - column()),
        source_(k_contiguous ? matrix + (first + row()) * leading + column()
                             : matrix + row() * leading + (first + column())) {}

  // Reads the next step's vector; zeros beyond the matrix. `vectors`: rows begin on 16 bytes.
  __device__ __forceinline__ void load(std::int64_t leading, bool vectors) {
    const int inside = left_along_rows_ > 0 ? left_along_columns_ : 0;
    if (vectors && inside >= width) {
      held_ = load_vector(source_);
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) held_.value[i] = i < inside ? source_[i] : T(0);
    }
    if constexpr (k_contiguous) {
      source_ += Shape::depth;
      left_along_columns_ -= Shape::depth;
    } else {
      source_ += Shape::depth * leading;
      left_along_rows_ -= Shape::depth;
    }
  }

  // Stores the vector where threads read it: [k][row of a or column of b].
  __device__ __forceinline__ void store(T (&tile)[Shape::depth][Shape::stride]) const {
    if constexpr (k_contiguous) {
#pragma unroll
      for (int i = 0; i < width; ++i) tile[column() + i][row()] = held_.value[i];
    } else {
      store_vector(&tile[row()][column()], held_);
    }
  }

 private:
  // The thread's place in the tile in memory order.
  static __device__ __forceinline__ int row() {
    return static_cast<int>(threadIdx.x) / row_vectors;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % row_vectors * width;
  }

  int left_along_rows_, left_along_columns_;
  const T* source_;
  Vector<T> held_;
};

__device__ __forceinline__ float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

template <class T, int pieces>
using Accumulators = T[Tile<T, pieces>::own][Tile<T, pieces>::own];

// The Tile::own values of a step that belong to thread number `thread` across (or down) the tile.
template <class T, int pieces>
__device__ __forceinline__ void gather(T* own, const T* line, int thread) {
  constexpr int width = Vector<T>::size;
#pragma unroll
  for (int piece = 0; piece < pieces; ++piece) {
    const auto vector = load_vector(line + (piece * threads_across + thread) * width);
#pragma unroll
    for (int i = 0; i < width; ++i) own[piece * width + i] = vector.value[i];
  }
}

template <class T, int pieces>
__device__ __forceinline__ void add_step(Accumulators<T, pieces>& sums, const T* a, const T* b,
                                         int down, int across) {
  constexpr int own = Tile<T, pieces>::own;
  T rows[own], columns[own];
  gather<T, pieces>(rows, a, down);
  gather<T, pieces>(columns, b, across);
#pragma unroll
  for (int i = 0; i < own; ++i) {
#pragma unroll
    for (int j = 0; j < own; ++j) sums[i][j] = multiply_add(rows[i], columns[j], sums[i][j]);
  }
}

// alpha * sums (+ c) (+ bias) of one vector of a row.
template <class T>
__device__ __forceinline__ void write_vector(const SimtProduct<T>& p, T* c, int column,
                                             const T* sums) {
  constexpr int width = Vector<T>::size;
  const auto result = [&](int i, T before) {
    T value = p.alpha * sums[i];
    if (p.accumulate) value += before;
    if (p.bias != nullptr) value += p.bias[column + i];
    return value;
  };
  if (p.vectors_of_c && column + width <= p.n) {
    Vector<T> values = p.accumulate ? load_vector(c) : Vector<T>{};
#pragma unroll
    for (int i = 0; i < width; ++i) values.value[i] = result(i, values.value[i]);
    store_vector(c, values);
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if (column + i < p.n) c[i] = result(i, p.accumulate ? c[i] : T(0));
    }
  }
}

template <class T, int pieces>
__device__ __forceinline__ void write_tile(const SimtProduct<T>& p, T* c, TilePosition tile,
                                           const Accumulators<T, pieces>& sums, int down,
                                           int across) {
  using Shape = Tile<T, pieces>;
  constexpr int width = Shape::width;
#pragma unroll
  for (int i = 0; i < Shape::own; ++i) {
    const int row =
        tile.row * Shape::extent + (i / width * threads_across + down) * width + i % width;
    if (row >= p.m) continue;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      const int column = tile.column * Shape::extent + (piece * threads_across + across) * width;
      if (column >= p.n) continue;
      write_vector(p, c + row * p.ldc + column, column, &sums[i][piece * width]);
    }
  }
}

// Resident blocks per multiprocessor. From 10.0 on, the compiler keeps more of the large fp32
// tile's operands in registers, and spills at 128 of them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
template <class T, int pieces>
inline constexpr int simt_blocks = std::is_same_v<T, float>&& pieces == 2 ? 1 : 2;
#else
template <class T, int pieces>
inline constexpr int simt_blocks = 2;
#endif

template <class T, int pieces, bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(block_threads, simt_blocks<T, pieces>)
    matmul_simt_kernel(SimtProduct<T> p) {
  using Shape = Tile<T, pieces>;
  constexpr int extent = Shape::extent;
  auto& buffers = shared_memory<typename Shape::Buffers>();
  const int down = static_cast<int>(threadIdx.x) / threads_across;
  const int across = static_cast<int>(threadIdx.x) % threads_across;
  const TilePosition tile = tile_of_block(static_cast<int>(blockIdx.x), (p.m + extent - 1) / extent,
                                          (p.n + extent - 1) / extent);
  const std::int64_t batch = blockIdx.y;
  Operand<T, pieces, !transpose_a> a(p.a + batch * p.stride_a, p.lda, tile.row * extent, p.m, p.k);
  Operand<T, pieces, transpose_b> b(p.b + batch * p.stride_b, p.ldb, tile.column * extent, p.n,
                                    p.k);

  Accumulators<T, pieces> sums = {};
  const int steps = (p.k + Shape::depth - 1) / Shape::depth;
  if (steps > 0) {
    a.load(p.lda, p.vectors_of_a);
    b.load(p.ldb, p.vectors_of_b);
    a.store(buffers.a[0]);
    b.store(buffers.b[0]);
  }
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const bool more = step + 1 < steps;
    if (more) {
      a.load(p.lda, p.vectors_of_a);
      b.load(p.ldb, p.vectors_of_b);
    }
    const int current = step % 2;
#pragma unroll
    for (int i = 0; i < Shape::depth; ++i) {
      add_step<T, pieces>(sums, buffers.a[current][i], buffers.b[current][i], down, across);
    }
    if (more) {
      a.store(buffers.a[1 - current]);
      b.store(buffers.b[1 - current]);
    }
    __syncthreads();
  }
  write_tile<T, pieces>(p, p.c + batch * p.stride_c, tile, sums, down, across);
}

template <class T>
SimtProduct<T> arguments_of(const Matmul& p, std::int64_t first) {
  constexpr int width = Vector<T>::size;
  const auto aligned = [&](const void* matrix, std::int64_t leading, std::int64_t stride) {
    return rows_aligned(matrix, leading, p.batch, stride, width, sizeof(T));
  };
  return {static_cast<const T*>(p.a) + first * p.stride_a,
          static_cast<const T*>(p.b) + first * p.stride_b,
          static_cast<T*>(p.c) + first * p.stride_c,
          static_cast<const T*>(p.bias),
          static_cast<int>(p.m),
          static_cast<int>(p.n),
          static_cast<int>(p.k),
          p.lda,
          p.ldb,
          p.ldc,
          p.stride_a,
          p.stride_b,
          p.stride_c,
          static_cast<T>(p.alpha),
          p.accumulate,
          aligned(p.a, p.lda, p.stride_a),
          aligned(p.b, p.ldb, p.stride_b),
          aligned(p.c, p.ldc, p.stride_c)};
}

template <class T, int pieces>
void run(const Matmul& p, Context& context) {
  constexpr int extent = Tile<T, pieces>::extent;
  const auto tiles = static_cast<unsigned>(tiles_of(p.m, extent) * tiles_of(p.n, extent));
  for_launches(p, [&](std::int64_t first, std::int64_t count) {
    for_transposes(p, [&](auto transpose_a, auto transpose_b) {
      launch(
          context,
          {"matmul_simt",
           {p.m, p.n, p.k, count},
           {reads(p.a, bytes_of_a(p)), reads(p.b, bytes_of_b(p)), reads(p.bias, bytes_of_bias(p)),
            writes(p.c, bytes_of_c(p))}},
          {dim3(tiles, static_cast<unsigned>(count)), dim3(block_threads)},
          matmul_simt_kernel<T, pieces, decltype(transpose_a)::value, decltype(transpose_b)::value>,
          arguments_of<T>(p, first));
    });
  });
}

template <class T>
void run_fitting(const Matmul& p, Context& context) {
  if (tiles_fill_device(p, Tile<T, 2>::extent, context)) {
    run<T, 2>(p, context);
  } else {
    run<T, 1>(p, context);
  }
}

}  // namespace

void matmul_simt(const Matmul& product, Context& context) {
  if (product.dtype == DType::float64) {
    run_fitting<double>(product, context);
  } else {
    run_fitting<float>(product, context);
  }
}

}  // namespace tessera::kernels::cuda
