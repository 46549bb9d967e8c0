// Attention within sequences, for every floating type and head size, on ordinary cores. It uses the
// tiles of attention_general.h on sequences that follow each other. A grid has blocks for the
// longest sequence; blocks past the end of a shorter one do nothing. As in attention's backward,
// the gradients of queries, keys and the bias have a kernel each, so every sum has one owner and
// one order.
#include "kernels/cuda/attention/attention_general.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace general {
namespace {

// Rows of one head of one sequence.
struct SequenceTile {
  int sequence, head, first, rows;  // rows of the tile; none or fewer past the sequence's end
  int length;
  std::int64_t start;  // the sequence's first row
};

__device__ __forceinline__ SequenceTile sequence_tile(const SequenceShape& s, unsigned index) {
  const HeadTile at = head_tile<tile>(index, s.heads, s.longest);
  const int length = s.lengths[at.batch];
  const int left = length - at.first;
  return {at.batch, at.head, at.first, left < tile ? left : tile, length, s.starts[at.batch]};
}

template <class T>
__device__ __forceinline__ T* sequence_rows(const SequenceShape& s, T* base, const SequenceTile& at,
                                            int first) {
  return base + ((at.start + first) * s.heads + at.head) * s.head_dim;
}
template <class T>
__device__ __forceinline__ Rows<T> rows_in(const SequenceShape& s, const void* base,
                                           const SequenceTile& at, int first) {
  return {sequence_rows(s, static_cast<const T*>(base), at, first), s.heads * s.head_dim,
          at.length - first, static_cast<int>(s.head_dim)};
}

__device__ __forceinline__ std::int64_t statistic_of(const SequenceShape& s, const SequenceTile& at,
                                                     int query) {
  return at.head * s.rows + at.start + query;
}

// True if a query sees a key; either may be past the sequence's end.
__device__ __forceinline__ bool sees_key(const SequenceShape& s, const SequenceTile& at, int query,
                                         int key) {
  const int distance = query < key ? key - query : query - key;
  return query < at.length && key < at.length && (s.window == 0 || distance <= s.window);
}

// The tiles that the rows of a tile meet, from `first` up to `last`: those of keys that queries
// see, and of queries that see keys.
struct MetTiles {
  int first, last;
};
__device__ __forceinline__ MetTiles met_tiles(const SequenceShape& s, const SequenceTile& at) {
  if (s.window == 0) return {0, at.length};
  const auto window = static_cast<int>(s.window);
  const int first = at.first > window ? (at.first - window) / tile * tile : 0;
  const int beyond = at.first + tile + window;
  return {first, beyond < at.length ? beyond : at.length};
}

// The scaled score with its bias.
template <class C>
__device__ __forceinline__ C biased_score(const SequenceShape& s, int head, int query, int key,
                                          C product) {
  const C score = product * static_cast<C>(s.scale);
  if (s.relative_bias == nullptr) return score;
  const std::int64_t row = key - query + s.reach - 1;
  return score + static_cast<const C*>(s.relative_bias)[row * s.heads + head];
}

// Bit j: dropout keeps the probability of `query` for the thread's key j of the tile.
__device__ __forceinline__ std::uint32_t kept_of(const SequenceShape& s, std::uint32_t threshold,
                                                 const SequenceTile& at, int query, int first_key) {
  if (threshold == 0) return ~0u;
  const std::int64_t row =
      ((s.first_sequence + at.sequence) * s.heads + at.head) * s.capacity + query;
  const std::int64_t draw = row * s.capacity + first_key + of_thread * column();
  return kept_bits<of_thread>(s.key, static_cast<std::uint64_t>(draw), threshold);
}

template <class T>
__global__ void __launch_bounds__(threads, least_blocks)
    sequence_forward_kernel(SequenceAttentionForward a, AttentionDropout dropout, unsigned panels) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const SequenceShape& s = a.shape;
  const SequenceTile at = sequence_tile(s, blockIdx.x / panels);
  if (at.rows <= 0) return;
  const auto panel_index = static_cast<int>(blockIdx.x % panels);
  const int first_column = panel_index * panel_columns<C>;
  SoftmaxRows<C> rows;
  for (int i = 0; i < of_thread; ++i) {
    rows.maximum[i] = -static_cast<C>(INFINITY);
    rows.sum[i] = 0;
  }
  Panel<C> panel = {};
  const MetTiles keys = met_tiles(s, at);
  for (int first_key = keys.first; first_key < keys.last; first_key += tile) {
    Scores<C> scores = {};
    add_products(scores, rows_in<T>(s, a.q, at, at.first), rows_in<T>(s, a.k, at, first_key),
                 memory);
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
#pragma unroll
      for (int j = 0; j < of_thread; ++j) {
        const int query = at.first + of_thread * row() + i;
        const int key = first_key + of_thread * column() + j;
        scores[i][j] = sees_key(s, at, query, key)
                           ? biased_score(s, at.head, query, key, scores[i][j])
                           : -static_cast<C>(INFINITY);
      }
    }
    softmax_step(rows, scores, panel);
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int query = at.first + of_thread * row() + i;
      const std::uint32_t kept = kept_of(s, dropout.threshold, at, query, first_key);
#pragma unroll
      for (int j = 0; j < of_thread; ++j) {
        if ((kept >> j & 1u) == 0) scores[i][j] = 0;
      }
    }
    store_weights<false>(scores, memory);
    add_weighted(panel, rows_in<T>(s, a.v, at, first_key), first_column, memory);
  }
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const C sum = reduce_row(rows.sum[i], [](C x, C y) { return x + y; });
    const C factor = static_cast<C>(dropout.kept_scale) / sum;
#pragma unroll
    for (int j = 0; j < panel_of_thread<C>; ++j) panel[i][j] *= factor;
    const int r = of_thread * row() + i;
    if (a.log_sum_exp != nullptr && panel_index == 0 && column() == 0 && r < at.rows) {
      static_cast<C*>(a.log_sum_exp)[statistic_of(s, at, at.first + r)] =
          rows.maximum[i] + logarithm(sum);
    }
  }
  store_panel<T>(panel, C{1}, sequence_rows(s, static_cast<T*>(a.out), at, at.first),
                 s.heads * s.head_dim, at.rows, first_column, s.head_dim);
}

constexpr int sequence_product_threads = 128;

// The products of the output's rows with their gradients: one warp per row of a head.
template <class T>
__global__ void __launch_bounds__(sequence_product_threads)
    sequence_product_kernel(SequenceShape s, const T* out, const T* dout, Compute<T>* products) {
  constexpr int warps = sequence_product_threads / warp_size;
  const std::int64_t count = s.rows * s.heads;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size;
       i < count; i += static_cast<std::int64_t>(gridDim.x) * warps) {
    Compute<T> sum = 0;
    for (std::int64_t c = lane; c < s.head_dim; c += warp_size) {
      sum += to_compute(out[i * s.head_dim + c]) * to_compute(dout[i * s.head_dim + c]);
    }
    sum = warp_reduce<Add>(sum);
    if (lane == 0) products[i % s.heads * s.rows + i / s.heads] = sum;
  }
}

// Computes the probabilities of a tile of queries and keys of one sequence after dropout, and the
// gradients of its scaled scores; zero past the sequence's end.
template <class T>
__device__ __forceinline__ void sequence_gradients(
    const SequenceAttentionBackward& a, const Compute<T>* products, const AttentionDropout& dropout,
    const SequenceTile& at, int first_query, int first_key, Scores<Compute<T>>& probabilities,
    Scores<Compute<T>>& gradients, Memory<Compute<T>>& memory) {
  using C = Compute<T>;
  const SequenceShape& s = a.shape;
  add_products(probabilities, rows_in<T>(s, a.q, at, first_query),
               rows_in<T>(s, a.k, at, first_key), memory);
  add_products(gradients, rows_in<T>(s, a.dout, at, first_query), rows_in<T>(s, a.v, at, first_key),
               memory);
  const auto kept_scale = static_cast<C>(dropout.kept_scale);
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const int query = first_query + of_thread * row() + i;
    const bool there = query < at.length;
    const std::int64_t index = statistic_of(s, at, query);
    const C log_sum_exp = there ? static_cast<const C*>(a.log_sum_exp)[index] : C{0};
    const C product = there ? products[index] : C{0};
    const std::uint32_t kept = kept_of(s, dropout.threshold, at, query, first_key);
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      const int key = first_key + of_thread * column() + j;
      C probability = 0;
      if (sees_key(s, at, query, key)) {
        const C score = biased_score(s, at.head, query, key, probabilities[i][j]);
        probability = exponential(score - log_sum_exp);
      }
      const bool keep = (kept >> j & 1u) != 0;
      probabilities[i][j] = keep ? probability * kept_scale : C{0};
      const C gradient = keep ? gradients[i][j] * kept_scale : C{0};
      gradients[i][j] = probability * (gradient - product);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(threads, least_blocks)
    sequence_query_kernel(SequenceAttentionBackward a, const Compute<T>* products,
                          AttentionDropout dropout, unsigned panels) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const SequenceShape& s = a.shape;
  const SequenceTile at = sequence_tile(s, blockIdx.x / panels);
  if (at.rows <= 0) return;
  const int first_column = static_cast<int>(blockIdx.x % panels) * panel_columns<C>;
  Panel<C> dq = {};
  const MetTiles keys = met_tiles(s, at);
  for (int first_key = keys.first; first_key < keys.last; first_key += tile) {
    Scores<C> probabilities = {}, gradients = {};
    sequence_gradients<T>(a, products, dropout, at, at.first, first_key, probabilities, gradients,
                          memory);
    store_weights<false>(gradients, memory);
    add_weighted(dq, rows_in<T>(s, a.k, at, first_key), first_column, memory);
  }
  store_panel<T>(dq, static_cast<C>(s.scale), sequence_rows(s, static_cast<T*>(a.dq), at, at.first),
                 s.heads * s.head_dim, at.rows, first_column, s.head_dim);
}

template <class T>
__global__ void __launch_bounds__(threads, least_blocks)
    sequence_key_kernel(SequenceAttentionBackward a, const Compute<T>* products,
                        AttentionDropout dropout, unsigned panels) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const SequenceShape& s = a.shape;
  const SequenceTile at = sequence_tile(s, blockIdx.x / panels);
  if (at.rows <= 0) return;
  const int first_column = static_cast<int>(blockIdx.x % panels) * panel_columns<C>;
  Panel<C> dk = {}, dv = {};
  const MetTiles queries = met_tiles(s, at);
  for (int query = queries.first; query < queries.last; query += tile) {
    Scores<C> probabilities = {}, gradients = {};
    sequence_gradients<T>(a, products, dropout, at, query, at.first, probabilities, gradients,
                          memory);
    store_weights<true>(probabilities, memory);
    add_weighted(dv, rows_in<T>(s, a.dout, at, query), first_column, memory);
    store_weights<true>(gradients, memory);
    add_weighted(dk, rows_in<T>(s, a.q, at, query), first_column, memory);
  }
  const std::int64_t stride = s.heads * s.head_dim;
  store_panel<T>(dk, static_cast<C>(s.scale), sequence_rows(s, static_cast<T*>(a.dk), at, at.first),
                 stride, at.rows, first_column, s.head_dim);
  store_panel<T>(dv, C{1}, sequence_rows(s, static_cast<T*>(a.dv), at, at.first), stride, at.rows,
                 first_column, s.head_dim);
}

// The first of the distances (key - query) of the block with number 0, a multiple of the tile.
__host__ __device__ __forceinline__ std::int64_t lowest_distance(std::int64_t reach) {
  return -((reach - 1 + tile - 1) / tile * tile);
}

// A block sums the gradients at 32 distances of one head, over all sequences. For a tile of queries
// these distances are in two tiles of keys, above and below its diagonal.
template <class T>
__global__ void __launch_bounds__(threads, least_blocks)
    sequence_bias_kernel(SequenceAttentionBackward a, const Compute<T>* products,
                         AttentionDropout dropout) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const SequenceShape& s = a.shape;
  const auto heads = static_cast<unsigned>(s.heads);
  const int head = static_cast<int>(blockIdx.x % heads);
  const int first_distance =
      static_cast<int>(lowest_distance(s.reach)) + tile * static_cast<int>(blockIdx.x / heads);
  const int own = static_cast<int>(threadIdx.x);  // index of the distance, for the first 32 threads
  C sum = 0;
  for (int sequence = 0; sequence < s.sequences; ++sequence) {
    const SequenceTile at{sequence, head, 0, 0, s.lengths[sequence], s.starts[sequence]};
    for (int query = 0; query < at.length; query += tile) {
      for (int half = 0; half < 2; ++half) {
        const int first_key = query + first_distance + half * tile;
        if (first_key < 0 || first_key >= at.length) continue;
        Scores<C> probabilities = {}, gradients = {};
        sequence_gradients<T>(a, products, dropout, at, query, first_key, probabilities, gradients,
                              memory);
        store_weights<false>(gradients, memory);
        __syncthreads();
        if (own < tile) {
          for (int r = half == 0 ? 0 : tile - own; r < (half == 0 ? tile - own : tile); ++r) {
            sum += memory.weights.value[r][r + own - half * tile];
          }
        }
        __syncthreads();
      }
    }
  }
  const std::int64_t place = first_distance + own + s.reach - 1;
  if (own < tile && place >= 0 && place < 2 * s.reach - 1) {
    static_cast<C*>(a.relative_bias_gradient)[place * s.heads + head] = sum;
  }
}

template <class T>
std::size_t rows_bytes(const SequenceShape& s) {
  return static_cast<std::size_t>(s.rows * s.heads * s.head_dim) * sizeof(T);
}
template <class T>
std::size_t bias_bytes(const SequenceShape& s) {
  return static_cast<std::size_t>((2 * s.reach - 1) * s.heads) * sizeof(Compute<T>);
}
template <class T>
std::size_t statistics_bytes(const SequenceShape& s) {
  return static_cast<std::size_t>(s.rows * s.heads) * sizeof(Compute<T>);
}
Access reads_places(const std::int32_t* places, const SequenceShape& s) {
  return reads(places, static_cast<std::size_t>(s.sequences) * sizeof(std::int32_t));
}

AttentionDropout sequence_dropout_of(const SequenceShape& s) {
  return {.threshold = static_cast<std::uint32_t>(s.dropout * 0x1p32),
          .kept_scale = 1.0 / (1.0 - static_cast<double>(s.dropout))};
}

// The number of blocks of a grid, with `panels` for each tile; sizes are checked as for attention.
unsigned sequence_blocks(const SequenceShape& s, std::int64_t panels, const char* kernel) {
  AttentionShape shape{};
  shape.batch = s.sequences;
  shape.heads = shape.key_heads = s.heads;
  shape.head_dim = s.head_dim;
  shape.query_length = shape.key_length = s.longest;
  shape.q_stride = shape.k_stride = shape.v_stride = shape.out_stride = s.heads * s.head_dim;
  shape.dropout = s.dropout;
  shape.dtype = s.dtype;
  check_attention(shape, kernel);
  return attention_blocks(shape, s.heads, s.longest, tile, panels);
}

std::int64_t sequence_panels(const SequenceShape& s) {
  const int columns = s.dtype == float64 ? panel_columns<double> : panel_columns<float>;
  return (s.head_dim + columns - 1) / columns;
}

template <class T>
void launch_sequence_backward(const SequenceAttentionBackward& a, Context& context) {
  using C = Compute<T>;
  const SequenceShape& s = a.shape;
  const std::int64_t panels = sequence_panels(s);
  const unsigned blocks = sequence_blocks(s, panels, "sequence_attention_backward");
  const std::size_t bytes = rows_bytes<T>(s);
  auto* const products = static_cast<C*>(context.scratch(statistics_bytes<T>(s)));
  constexpr int warps = sequence_product_threads / warp_size;
  launch(context,
         {"sequence_attention_products",
          {s.rows, s.heads, s.head_dim},
          {reads(a.out, bytes), reads(a.dout, bytes), writes(products, statistics_bytes<T>(s))}},
         {blocks_for(s.rows * s.heads, warps), sequence_product_threads},
         sequence_product_kernel<T>, s, static_cast<const T*>(a.out), static_cast<const T*>(a.dout),
         products);
  const AttentionDropout dropout = sequence_dropout_of(s);
  const Access q = reads(a.q, bytes), k = reads(a.k, bytes), v = reads(a.v, bytes),
               dout = reads(a.dout, bytes), starts = reads_places(s.starts, s),
               lengths = reads_places(s.lengths, s),
               bias = reads(s.relative_bias, bias_bytes<T>(s)),
               log_sum_exp = reads(a.log_sum_exp, statistics_bytes<T>(s)),
               row_products = reads(products, statistics_bytes<T>(s));
  const std::initializer_list<std::int64_t> sizes = {s.sequences, s.rows, s.heads, s.longest,
                                                     s.head_dim};
  launch(context,
         {"sequence_attention_key_gradients",
          sizes,
          {q, k, v, dout, starts, lengths, bias, log_sum_exp, row_products, writes(a.dk, bytes),
           writes(a.dv, bytes)}},
         {blocks, threads}, sequence_key_kernel<T>, a, products, dropout,
         static_cast<unsigned>(panels));
  launch(context,
         {"sequence_attention_query_gradients",
          sizes,
          {q, k, v, dout, starts, lengths, bias, log_sum_exp, row_products, writes(a.dq, bytes)}},
         {blocks, threads}, sequence_query_kernel<T>, a, products, dropout,
         static_cast<unsigned>(panels));
  if (a.relative_bias_gradient == nullptr) return;
  const std::int64_t tiles = (s.reach - 1 - lowest_distance(s.reach)) / tile + 1;
  launch(context,
         {"sequence_attention_bias_gradient",
          sizes,
          {q, k, v, dout, starts, lengths, bias, log_sum_exp, row_products,
           writes(a.relative_bias_gradient, bias_bytes<T>(s))}},
         {static_cast<unsigned>(tiles * s.heads), threads}, sequence_bias_kernel<T>, a, products,
         dropout);
}

}  // namespace
}  // namespace general

void sequence_attention_forward(const SequenceAttentionForward& a, Queue queue) {
  const SequenceShape& s = a.shape;
  const std::int64_t panels = general::sequence_panels(s);
  const unsigned blocks = general::sequence_blocks(s, panels, "sequence_attention_forward");
  for_floating(s.dtype, "sequence_attention_forward", [&]<class T>(TypeTag<T>) {
    const std::size_t bytes = general::rows_bytes<T>(s);
    launch(context_of(queue),
           {"sequence_attention_forward",
            {s.sequences, s.rows, s.heads, s.longest, s.head_dim},
            {reads(a.q, bytes), reads(a.k, bytes), reads(a.v, bytes),
             general::reads_places(s.starts, s), general::reads_places(s.lengths, s),
             reads(s.relative_bias, general::bias_bytes<T>(s)), writes(a.out, bytes),
             writes(a.log_sum_exp, general::statistics_bytes<T>(s))}},
           {blocks, general::threads}, general::sequence_forward_kernel<T>, a,
           general::sequence_dropout_of(s), static_cast<unsigned>(panels));
  });
}

void sequence_attention_backward(const SequenceAttentionBackward& a, Queue queue) {
  for_floating(a.shape.dtype, "sequence_attention_backward", [&]<class T>(TypeTag<T>) {
    general::launch_sequence_backward<T>(a, context_of(queue));
  });
}

}  // namespace tessera::kernels::cuda
