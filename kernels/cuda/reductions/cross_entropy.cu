// Softmax cross-entropy over rows of logits, forward and backward: one block per row.
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/exponential_sum.h"
#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/indices.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row.h"

namespace tessera::kernels::cuda {
namespace {

struct Targets {
  Indices indices;
  std::int64_t ignore;
};

// The columns of the vocabulary in a call.
struct Columns {
  std::int64_t first, count, vocabulary;

  __device__ __forceinline__ bool has(std::int64_t target) const {
    return target >= first && target < first + count;
  }
};

// Merges two parts of a row. A part that adds nothing (only -Inf) has no shift of its own.
template <class C>
__device__ __forceinline__ ExponentialSum<C> merge(const ExponentialSum<C>& left,
                                                   const ExponentialSum<C>& right) {
  if (left.sum == C{0}) return right;
  if (right.sum == C{0}) return left;
  const C shift = left.shift > right.shift ? left.shift : right.shift;
  return {left.sum * exponential(left.shift - shift) + right.sum * exponential(right.shift - shift),
          shift};
}

// loss[r] = log_sum_exp[r] - logits[r, target[r]], 0 for ignored targets. kernels/cross_entropy.h
// describes loss, log_sum_exp and sum between blocks of columns. logits: [rows, columns] of T at a
// stride; loss, log_sum_exp, sum: [rows] of Compute<T>. A target outside the vocabulary is
// reported, and its loss is NaN. Bytes: read the logits.
template <class T, int threads>
__global__ void __launch_bounds__(threads, resident_blocks<threads, 64, Compute<T>>)
    cross_entropy_forward_kernel(const T* logits, Targets targets, Compute<T>* loss,
                                 Compute<T>* log_sum_exp, Compute<T>* sums, std::int64_t rows,
                                 Columns columns, std::int64_t stride, Fault* fault) {
  using C = Compute<T>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* values = logits + row * stride;
    ExponentialSum<C> sum = exponential_sum<threads>(values, columns.count);
    if (threadIdx.x != 0) continue;
    if (columns.first > 0) sum = merge({sums[row], log_sum_exp[row]}, sum);
    const std::int64_t target = targets.indices[row];
    if (columns.has(target)) loss[row] = to_compute(values[target - columns.first]);
    if (columns.first + columns.count < columns.vocabulary) {
      sums[row] = sum.sum;
      log_sum_exp[row] = sum.shift;
      continue;
    }
    const C log_sum = logarithm(sum.sum);
    log_sum_exp[row] = sum.shift + log_sum;
    if (target == targets.ignore) {
      loss[row] = 0;
    } else if (target >= 0 && target < columns.vocabulary) {
      // Takes the difference to the shift first: it is exact or nearly so if the loss is small.
      loss[row] = (sum.shift - loss[row]) + log_sum;
    } else {
      report_fault(fault, Fault::cross_entropy_target, row, target, columns.vocabulary);
      loss[row] = static_cast<C>(NAN);
    }
  }
}

// As many elements of a narrower type as a vector of the wider one has, stored at once.
template <class Out, int size>
struct alignas(size * sizeof(Out)) Narrowed {
  Out value[size];
};

// Calls body(i, ElementCount<size>) for all elements of a row of T that become a row of Out: a
// vector of T at a time if both rows are aligned for it, else a single element.
template <int threads, class T, class Out, class Body>
__device__ __forceinline__ void for_pairs(std::int64_t n, const T* from, const Out* to,
                                          Body&& body) {
  if constexpr (sizeof(T) == sizeof(Out)) {
    for_elements<threads>(n, body, from, to);
  } else {
    constexpr std::int64_t width = Vector<T>::size;
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(from) % 16 == 0 &&
        reinterpret_cast<std::uintptr_t>(to) % sizeof(Narrowed<Out, Vector<T>::size>) == 0;
    const std::int64_t whole = aligned ? n / width * width : 0;
    for (std::int64_t i = threadIdx.x * width; i < whole; i += threads * width) {
      body(i, ElementCount<width>{});
    }
    for (std::int64_t i = whole + threadIdx.x; i < n; i += threads) body(i, ElementCount<1>{});
  }
}

// dlogits[r,v] = scale * (e^(logits - log_sum_exp) - [v == target]), 0 in ignored rows and in rows
// whose target is outside the vocabulary, which are reported. dlogits may equal logits; both have
// the stride. Bytes: read logits, write dlogits.
template <class T, class Out, int threads>
__global__ void __launch_bounds__(threads, resident_blocks<threads, 64, Compute<T>>)
    cross_entropy_backward_kernel(const T* logits, Targets targets, const Compute<T>* log_sum_exp,
                                  const Compute<T>* dloss, const double* inverse_count,
                                  Out* dlogits, std::int64_t rows, Columns columns,
                                  std::int64_t stride, Fault* fault) {
  using C = Compute<T>;
  const C scale = static_cast<C>(*inverse_count * static_cast<double>(*dloss));
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = logits + row * stride;
    Out* to = dlogits + row * stride;
    const std::int64_t target = targets.indices[row];
    const bool valid = target >= 0 && target < columns.vocabulary;
    const bool counts = valid && target != targets.ignore;
    if (!valid && target != targets.ignore && threadIdx.x == 0) {
      report_fault(fault, Fault::cross_entropy_target, row, target, columns.vocabulary);
    }
    const C shift = log_sum_exp[row];
    const std::int64_t here = target - columns.first;
    for_pairs<threads>(columns.count, from, to, [&](std::int64_t i, auto count) {
      constexpr int size = decltype(count)::value;
      C values[size];
      load_elements(from + i, values);
#pragma unroll
      for (int k = 0; k < size; ++k) {
        const C probability = exponential(values[k] - shift);
        const C gradient = i + k == here ? probability - C{1} : probability;
        values[k] = counts ? scale * gradient : C{0};
      }
      if constexpr (sizeof(T) == sizeof(Out)) {
        store_elements(to + i, values);
      } else {
        Narrowed<Out, size> narrowed;
#pragma unroll
        for (int k = 0; k < size; ++k) narrowed.value[k] = from_compute<Out>(values[k]);
        store_whole(to + i, narrowed);
      }
    });
  }
}

template <class Arguments>
void check(const char* kernel, const Arguments& a) {
  if (a.first < 0 || a.columns < 0 || a.first + a.columns > a.vocabulary) {
    misuse_of(kernel, "the columns are not in the vocabulary", a.columns);
  }
  if (a.stride < a.columns) misuse_of(kernel, "the row stride is below the columns", a.stride);
}

// Bytes from the first element of the block to the last.
template <class T, class Arguments>
std::int64_t bytes_of_block(const Arguments& a) {
  if (a.rows == 0) return 0;
  return ((a.rows - 1) * a.stride + a.columns) * static_cast<std::int64_t>(sizeof(T));
}

template <class T, class Out>
void launch_backward(const CrossEntropyBackward& a, Context& context, const Indices& targets) {
  using C = Compute<T>;
  for_threads_of_row<T>(a.columns, [&](auto count) {
    constexpr int threads = decltype(count)::value;
    launch(context,
           {"cross_entropy_backward",
            {a.rows, a.columns},
            {reads(a.logits, bytes_of_block<T>(a)), reads(targets, a.rows),
             reads(a.log_sum_exp, a.rows * static_cast<std::int64_t>(sizeof(C))),
             reads(a.dloss, sizeof(C)), reads(a.inverse_count, sizeof(double)),
             writes(a.dlogits, bytes_of_block<Out>(a))}},
           {blocks_for(a.rows, 1), threads}, cross_entropy_backward_kernel<T, Out, threads>,
           static_cast<const T*>(a.logits), Targets{targets, a.ignore},
           static_cast<const C*>(a.log_sum_exp), static_cast<const C*>(a.dloss), a.inverse_count,
           static_cast<Out*>(a.dlogits), a.rows, Columns{a.first, a.columns, a.vocabulary},
           a.stride, context.fault);
  });
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForward& a, Queue queue) {
  check("cross_entropy_forward", a);
  const bool in_blocks = a.columns < a.vocabulary;
  if (in_blocks && a.sum == nullptr) {
    misuse_of("cross_entropy_forward", "a block of the vocabulary has no memory for its sum",
              a.columns);
  }
  Context& context = context_of(queue);
  const Indices targets = indices_of(a.targets, a.target_dtype, "cross_entropy_forward");
  for_floating(a.dtype, "cross_entropy_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const auto statistics = a.rows * static_cast<std::int64_t>(sizeof(C));
    for_threads_of_row<T>(a.columns, [&](auto count) {
      constexpr int threads = decltype(count)::value;
      launch(context,
             {"cross_entropy_forward",
              {a.rows, a.columns},
              {reads(a.logits, bytes_of_block<T>(a)), reads(targets, a.rows),
               writes(a.loss, statistics), writes(a.log_sum_exp, statistics),
               writes(a.sum, in_blocks ? statistics : 0)}},
             {blocks_for(a.rows, 1), threads}, cross_entropy_forward_kernel<T, threads>,
             static_cast<const T*>(a.logits), Targets{targets, a.ignore}, static_cast<C*>(a.loss),
             static_cast<C*>(a.log_sum_exp), static_cast<C*>(a.sum), a.rows,
             Columns{a.first, a.columns, a.vocabulary}, a.stride, context.fault);
    });
  });
}

void cross_entropy_backward(const CrossEntropyBackward& a, Queue queue) {
  check("cross_entropy_backward", a);
  Context& context = context_of(queue);
  const Indices targets = indices_of(a.targets, a.target_dtype, "cross_entropy_backward");
  for_floating(a.out_dtype, "cross_entropy_backward", [&](auto tag) {
    using Out = typename decltype(tag)::type;
    if (a.dtype == a.out_dtype) return launch_backward<Out, Out>(a, context, targets);
    if constexpr (sizeof(Out) == 2) {
      if (a.dtype == DType::float32) return launch_backward<float, Out>(a, context, targets);
    }
    unsupported("cross_entropy_backward", a.dtype);
  });
}

}  // namespace tessera::kernels::cuda
