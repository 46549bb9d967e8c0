// Parts of the general attention kernels, which support every floating type, head size and stride:
// products of tiles on ordinary cores, in fp32 (fp64 for fp64). A block of 64 threads computes a
// tile of 32 x 32 scores; a thread has 4 x 4 of them.
//
// Results have at most panel_columns<C> columns per block. Wider heads take several blocks, each of
// which computes the scores itself. This bounds shared memory and registers for every head size.
#pragma once

#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/device/math.h"

namespace tessera::kernels::cuda::general {

inline constexpr int tile = 32;  // queries, keys, and elements of a head at a time
inline constexpr int of_thread = 4;
inline constexpr int lanes = tile / of_thread;
inline constexpr int threads = lanes * lanes;
// The least number of blocks per multiprocessor. Each thread may then have all the registers that
// an instruction can name; without it the compiler spills a few.
inline constexpr int least_blocks = 4;

template <class C>
inline constexpr int panel_columns = std::is_same_v<C, double> ? 32 : 64;
template <class C>
inline constexpr int panel_of_thread = panel_columns<C> / lanes;

// A thread's scores: rows of_thread * row() + i, columns of_thread * column() + j.
template <class C>
using Scores = C[of_thread][of_thread];
// A thread's part of a panel: the same rows, columns column() + lanes * j.
template <class C>
using Panel = C[of_thread][panel_of_thread<C>];

__device__ __forceinline__ int row() {
  return static_cast<int>(threadIdx.x) / lanes;
}
__device__ __forceinline__ int column() {
  return static_cast<int>(threadIdx.x) % lanes;
}

// One extra column keeps the threads of a column in different banks.
template <class C>
struct Square {
  C value[tile][tile + 1];
};

template <class C>
struct Memory {
  Square<C> left, right;            // parts of the rows whose products are scores
  Square<C> weights;                // a tile of probabilities or of scores' gradients
  C panel[tile][panel_columns<C>];  // the rows that they weight
};

// Rows of a head in global memory.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
  int count, columns;

  __device__ __forceinline__ Compute<T> at(int r, int c) const {
    return r < count && c < columns ? to_compute(data[r * stride + c]) : Compute<T>{0};
  }
};

template <class T>
__device__ __forceinline__ Rows<T> rows_of(const void* base, std::int64_t length,
                                           std::int64_t stride, int batch, int first, int head,
                                           std::int64_t width) {
  return {head_rows(static_cast<const T*>(base), length, stride, batch, first, head, width), stride,
          static_cast<int>(length) - first, static_cast<int>(width)};
}

// scores += left rows times right rows, transposed. All threads call it.
template <class T>
__device__ __forceinline__ void add_products(Scores<Compute<T>>& scores, Rows<T> left,
                                             Rows<T> right, Memory<Compute<T>>& memory) {
  using C = Compute<T>;
  for (int first = 0; first < left.columns; first += tile) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < tile * tile; i += threads) {
      const int r = i / tile, c = i % tile;
      memory.left.value[r][c] = left.at(r, first + c);
      memory.right.value[r][c] = right.at(r, first + c);
    }
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < tile; ++k) {
      C a[of_thread], b[of_thread];
#pragma unroll
      for (int i = 0; i < of_thread; ++i) {
        a[i] = memory.left.value[of_thread * row() + i][k];
        b[i] = memory.right.value[of_thread * column() + i][k];
      }
#pragma unroll
      for (int i = 0; i < of_thread; ++i) {
#pragma unroll
        for (int j = 0; j < of_thread; ++j) scores[i][j] += a[i] * b[j];
      }
    }
  }
}

// Gives a tile to the threads that weight rows with it, either unchanged or transposed. Users need
// a barrier before they read, and must be done with the previous tile.
template <bool transposed, class C>
__device__ __forceinline__ void store_weights(const Scores<C>& scores, Memory<C>& memory) {
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      const int r = of_thread * row() + i, c = of_thread * column() + j;
      (transposed ? memory.weights.value[c][r] : memory.weights.value[r][c]) = scores[i][j];
    }
  }
}

// panel += weights times the rows' columns from first_column on. All threads call it; there is a
// barrier at its end.
template <class T>
__device__ __forceinline__ void add_weighted(Panel<Compute<T>>& panel, Rows<T> rows,
                                             int first_column, Memory<Compute<T>>& memory) {
  using C = Compute<T>;
  for (int i = static_cast<int>(threadIdx.x); i < tile * panel_columns<C>; i += threads) {
    const int r = i / panel_columns<C>, c = i % panel_columns<C>;
    memory.panel[r][c] = rows.at(r, first_column + c);
  }
  __syncthreads();
#pragma unroll 4
  for (int k = 0; k < tile; ++k) {
    C b[panel_of_thread<C>];
#pragma unroll
    for (int j = 0; j < panel_of_thread<C>; ++j) b[j] = memory.panel[k][column() + lanes * j];
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const C a = memory.weights.value[of_thread * row() + i][k];
#pragma unroll
      for (int j = 0; j < panel_of_thread<C>; ++j) panel[i][j] += a * b[j];
    }
  }
  __syncthreads();
}

// Writes `factor` times the panel to the columns from first_column on.
template <class T>
__device__ __forceinline__ void store_panel(const Panel<Compute<T>>& panel, Compute<T> factor,
                                            T* to, std::int64_t stride, int rows, int first_column,
                                            std::int64_t width) {
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const int r = of_thread * row() + i;
#pragma unroll
    for (int j = 0; j < panel_of_thread<Compute<T>>; ++j) {
      const int c = first_column + column() + lanes * j;
      if (r < rows && c < width) to[r * stride + c] = from_compute<T>(panel[i][j] * factor);
    }
  }
}

// The running softmax of a thread's rows; `sum` covers only the thread's own columns.
template <class C>
struct SoftmaxRows {
  C maximum[of_thread];
  C sum[of_thread];
};

// Reduces over the threads of a row, which are neighbouring lanes.
template <class C, class Operation>
__device__ __forceinline__ C reduce_row(C value, Operation operation) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value = operation(value, __shfl_xor_sync(whole_warp, value, offset));
  }
  return value;
}

// Adds a tile of scaled scores, -inf where a key is not visible, to the running softmax. The scores
// become e^(score - maximum), and the panel is scaled to the new maximum.
template <class C>
__device__ __forceinline__ void softmax_step(SoftmaxRows<C>& rows, Scores<C>& scores,
                                             Panel<C>& panel) {
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    C maximum = rows.maximum[i];
#pragma unroll
    for (int j = 0; j < of_thread; ++j) maximum = fmax(maximum, scores[i][j]);
    maximum = reduce_row(maximum, [](C a, C b) { return fmax(a, b); });
    // For a row without visible keys so far, any finite shift works: e^(-inf) = 0. NaNs stay NaNs.
    const C shift = maximum == -static_cast<C>(INFINITY) ? C{0} : maximum;
    const C factor = exponential(rows.maximum[i] - shift);
    C total = 0;
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      scores[i][j] = exponential(scores[i][j] - shift);
      total += scores[i][j];
    }
    rows.maximum[i] = maximum;
    rows.sum[i] = rows.sum[i] * factor + total;
#pragma unroll
    for (int j = 0; j < panel_of_thread<C>; ++j) panel[i][j] *= factor;
  }
}

// True if `query` sees `key`; either may be beyond the last.
__device__ __forceinline__ bool sees(const AttentionShape& shape, const std::uint8_t* mask,
                                     int query, int key) {
  return query < shape.query_length && key < shape.key_length &&
         (!shape.causal || key <= query + causal_offset(shape)) &&
         (mask == nullptr || mask[key] != 0);
}

// The first key that a query sees, with variants.
template <bool variants>
__device__ __forceinline__ int first_key_of(const AttentionShape& shape, int batch, int query) {
  return variants ? first_key_seen(shape, batch, query) : 0;
}
// The scaled score, under the cap if there is one.
template <bool variants, class C>
__device__ __forceinline__ C scaled(const AttentionShape& shape, C product) {
  const C score = product * static_cast<C>(shape.scale);
  if constexpr (variants) {
    const C cap = static_cast<C>(shape.soft_cap);
    if (shape.soft_cap > 0.0f) return cap * hyperbolic_tangent(score / cap);
  }
  return score;
}

// The element of the bias for a query and a key that exist; 0 without a bias.
template <bool variants, class C>
__device__ __forceinline__ C bias_of(const AttentionShape& shape, int batch, int head, int query,
                                     int key) {
  if (!variants || shape.bias == nullptr) return C{0};
  return static_cast<const C*>(
      shape.bias)[batch * shape.bias_batch_stride + head * shape.bias_head_stride +
                  query * shape.key_length + key];
}

// Bit j: dropout keeps the probability of `query` for the thread's key j of the tile.
__device__ __forceinline__ std::uint32_t kept_scores(const AttentionShape& shape,
                                                     std::uint32_t threshold, int batch, int head,
                                                     int query, int first_key) {
  if (threshold == 0) return ~0u;
  const std::uint64_t draw = first_draw(shape, batch, head, query) +
                             static_cast<std::uint64_t>(first_key + of_thread * column());
  return kept_bits<of_thread>(shape.key, draw, threshold);
}

// The panels of rows of `width` elements.
inline std::int64_t panels_of(const AttentionShape& shape, std::int64_t width) {
  const int columns = shape.dtype == float64 ? panel_columns<double> : panel_columns<float>;
  return (width + columns - 1) / columns;
}

}  // namespace tessera::kernels::cuda::general
