// Reductions over the middle of three dimensions, in two passes if the reduced dimension is long:
// chunks, then the chunks' results. Chunks and the order inside depend on the sizes alone.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/scratch.h"

namespace tessera::kernels::cuda {
namespace {

// A result so far: a sum, or the best value and its place.
template <class C>
struct Reduced {
  C value;
  std::int64_t place;  // negative: nothing yet
};

template <class C>
__device__ __forceinline__ Reduced<C> combined(ReduceOp op, const Reduced<C>& a,
                                               const Reduced<C>& b) {
  if (op == ReduceOp::sum) return {a.value + b.value, 0};
  if (a.place < 0) return b;
  if (b.place < 0) return a;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  const bool largest = op == ReduceOp::maximum || op == ReduceOp::argmax;
  bool b_wins = false;
  if (a_nan || b_nan) {
    b_wins = a_nan && b_nan ? b.place < a.place : b_nan;
  } else if (a.value == b.value) {
    b_wins = b.place < a.place;
  } else {
    b_wins = largest ? b.value > a.value : b.value < a.value;
  }
  return b_wins ? b : a;
}

template <class C>
__device__ __forceinline__ Reduced<C> nothing() {
  return {C(0), -1};
}

// Where a pass reads: elements, or the results of the pass before.
template <class T>
struct Elements {
  const T* x;
  __device__ __forceinline__ Reduced<Compute<T>> at(std::int64_t i, std::int64_t place) const {
    return {to_compute(x[i]), place};
  }
};
template <class C>
struct Partials {
  const Reduced<C>* x;
  __device__ __forceinline__ Reduced<C> at(std::int64_t i, std::int64_t) const { return x[i]; }
};

// Where it writes: partial results, or the output.
template <class C>
struct ToPartials {
  Reduced<C>* out;
  __device__ __forceinline__ void put(std::int64_t i, const Reduced<C>& result, ReduceOp, C) const {
    out[i] = result;
  }
};
template <class T>
struct ToOutput {
  void* out;
  __device__ __forceinline__ void put(std::int64_t i, const Reduced<Compute<T>>& result,
                                      ReduceOp op, Compute<T> scale) const {
    if (op == ReduceOp::argmax || op == ReduceOp::argmin) {
      static_cast<std::int64_t*>(out)[i] = result.place;
    } else {
      static_cast<T*>(out)[i] =
          from_compute<T>(op == ReduceOp::sum ? result.value * scale : result.value);
    }
  }
};

// [outer, reduced, inner] in chunks of the reduced dimension: results [outer, chunks, inner].
struct ReduceShape {
  std::int64_t outer, reduced, inner, chunk, chunks;
};

constexpr int row_threads = 128;
template <class C>
struct RowResults {
  Reduced<C> value[row_threads];
};

// inner == 1: a block reduces one chunk of a row. Bytes: read the input once.
template <class C, class From, class To>
__global__ void __launch_bounds__(row_threads)
    reduce_rows_kernel(ReduceOp op, ReduceShape s, From from, To to, C scale) {
  auto& shared = shared_memory<RowResults<C>>();
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t i = blockIdx.x; i < s.outer * s.chunks; i += gridDim.x) {
    const Quotient where = divide(i, s.chunks);
    const std::int64_t begin = where.remainder * s.chunk;
    const std::int64_t end = begin + s.chunk < s.reduced ? begin + s.chunk : s.reduced;
    Reduced<C> result = nothing<C>();
    for (std::int64_t r = begin + thread; r < end; r += row_threads) {
      result = combined(op, result, from.at(where.quotient * s.reduced + r, r));
    }
    shared.value[thread] = result;
    __syncthreads();
    for (int half = row_threads / 2; half > 0; half /= 2) {
      if (thread < half)
        shared.value[thread] = combined(op, shared.value[thread], shared.value[thread + half]);
      __syncthreads();
    }
    if (thread == 0) to.put(i, shared.value[0], op, scale);
    __syncthreads();
  }
}

constexpr int reduce_lanes = 32, reduce_warps = 8;
template <class C>
struct ColumnResults {
  Reduced<C> value[reduce_warps][reduce_lanes];
};

// inner > 1: a block reduces one chunk of 32 columns. Bytes: read the input once.
template <class C, class From, class To>
__global__ void __launch_bounds__(reduce_lanes* reduce_warps)
    reduce_columns_kernel(ReduceOp op, ReduceShape s, From from, To to, C scale) {
  auto& shared = shared_memory<ColumnResults<C>>();
  const int lane = static_cast<int>(threadIdx.x) % reduce_lanes;
  const int warp = static_cast<int>(threadIdx.x) / reduce_lanes;
  const std::int64_t blocks = (s.inner + reduce_lanes - 1) / reduce_lanes;
  for (std::int64_t i = blockIdx.x; i < s.outer * s.chunks * blocks; i += gridDim.x) {
    const Quotient across = divide(i, blocks);
    const Quotient where = divide(across.quotient, s.chunks);
    const std::int64_t column = across.remainder * reduce_lanes + lane;
    const std::int64_t begin = where.remainder * s.chunk;
    const std::int64_t end = begin + s.chunk < s.reduced ? begin + s.chunk : s.reduced;
    Reduced<C> result = nothing<C>();
    if (column < s.inner) {
      for (std::int64_t r = begin + warp; r < end; r += reduce_warps) {
        result =
            combined(op, result, from.at((where.quotient * s.reduced + r) * s.inner + column, r));
      }
    }
    shared.value[warp][lane] = result;
    __syncthreads();
    if (warp == 0 && column < s.inner) {
      for (int w = 1; w < reduce_warps; ++w) result = combined(op, result, shared.value[w][lane]);
      to.put(across.quotient * s.inner + column, result, op, scale);
    }
    __syncthreads();
  }
}

template <class C, class From, class To>
void pass(Context& context, const char* name, ReduceOp op, const ReduceShape& s, const From& from,
          const To& to, C scale, const Access& read, const Access& write) {
  const LaunchInfo info = {name, {s.outer, s.reduced, s.inner, s.chunks}, {read, write}};
  if (s.inner == 1) {
    launch(context, info, {blocks_for(s.outer * s.chunks, 1), row_threads},
           reduce_rows_kernel<C, From, To>, op, s, from, to, scale);
  } else {
    const std::int64_t blocks = (s.inner + reduce_lanes - 1) / reduce_lanes;
    launch(context, info, {blocks_for(s.outer * s.chunks * blocks, 1), reduce_lanes * reduce_warps},
           reduce_columns_kernel<C, From, To>, op, s, from, to, scale);
  }
}

template <class T>
void reduce_of(const Reduce& a, Context& context) {
  using C = Compute<T>;
  // Chunks of at least 1024, and at most 256 of them.
  const std::int64_t chunk = std::max<std::int64_t>(1024, (a.reduced + 255) / 256);
  const std::int64_t chunks = std::max<std::int64_t>(1, (a.reduced + chunk - 1) / chunk);
  const ReduceShape s{a.outer, a.reduced, a.inner, chunk, chunks};
  const std::int64_t results = a.outer * a.inner;
  const bool places = a.op == ReduceOp::argmax || a.op == ReduceOp::argmin;
  const Access read = reads(a.x, results * a.reduced * static_cast<std::int64_t>(sizeof(T)));
  const Access write =
      writes(a.out, results * static_cast<std::int64_t>(places ? sizeof(std::int64_t) : sizeof(T)));
  const auto scale = static_cast<C>(a.scale);
  const Elements<T> elements{static_cast<const T*>(a.x)};
  const ToOutput<T> output{a.out};
  if (chunks == 1) return pass<C>(context, "reduce", a.op, s, elements, output, scale, read, write);
  const std::int64_t partial_bytes =
      results * chunks * static_cast<std::int64_t>(sizeof(Reduced<C>));
  auto* partials =
      static_cast<Reduced<C>*>(context.scratch(static_cast<std::size_t>(partial_bytes)));
  pass<C>(context, "reduce", a.op, s, elements, ToPartials<C>{partials}, scale, read,
          writes(partials, partial_bytes));
  pass<C>(context, "reduce combine", a.op, {a.outer, chunks, a.inner, chunks, 1},
          Partials<C>{partials}, output, scale, reads(partials, partial_bytes), write);
}

}  // namespace

void reduce(const Reduce& a, Queue queue) {
  if (a.op > ReduceOp::argmin)
    misuse_of("reduce", "unknown operation", static_cast<std::int64_t>(a.op));
  if (a.outer * a.inner == 0) return;
  if (a.op != ReduceOp::sum && a.reduced == 0)
    misuse_of("reduce", "the largest or smallest of no elements", 0);
  for_floating(a.dtype, "reduce",
               [&](auto tag) { reduce_of<typename decltype(tag)::type>(a, context_of(queue)); });
}

}  // namespace tessera::kernels::cuda
