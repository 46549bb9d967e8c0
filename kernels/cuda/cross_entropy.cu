// Softmax cross-entropy over rows of logits, forward and backward: a block takes a row.
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/exponential_sum.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/registry.h"
#include "kernels/cuda/row.h"

namespace tessera::kernels::cuda {
namespace {

struct Targets {
  Indices indices;
  std::int64_t ignore;
};

// loss[r] = log_sum_exp[r] - logits[r, target[r]], 0 for ignored targets. logits: [rows,
// vocabulary] of T at a stride; loss, log_sum_exp: [rows] of Compute<T>. A target outside the
// vocabulary is reported, its loss is NaN. Bytes: read the logits.
template <class T, int threads>
__global__ void __launch_bounds__(threads, resident_blocks<threads, 64>)
    cross_entropy_forward_kernel(const T* logits, Targets targets, Compute<T>* loss,
                                 Compute<T>* log_sum_exp, std::int64_t rows,
                                 std::int64_t vocabulary, std::int64_t stride, Fault* fault) {
  using C = Compute<T>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* values = logits + row * stride;
    const ExponentialSum<C> sum = exponential_sum<threads>(values, vocabulary);
    if (threadIdx.x != 0) continue;
    const C log_sum = logarithm(sum.sum);
    const std::int64_t target = targets.indices[row];
    log_sum_exp[row] = sum.shift + log_sum;
    if (target == targets.ignore) {
      loss[row] = 0;
    } else if (target >= 0 && target < vocabulary) {
      // The difference to the shift first: it is exact or nearly so where the loss is small.
      loss[row] = (sum.shift - to_compute(values[target])) + log_sum;
    } else {
      report_fault(fault, Fault::cross_entropy_target, row, target, vocabulary);
      loss[row] = static_cast<C>(NAN);
    }
  }
}

// dlogits[r,v] = scale * (e^(logits - log_sum_exp) - [v == target]), 0 in ignored rows and in those
// whose target is outside the vocabulary, which are reported. dlogits may equal logits; both have
// the stride. Bytes: read logits, write dlogits.
template <class T, int threads>
__global__ void __launch_bounds__(threads, resident_blocks<threads, 64>)
    cross_entropy_backward_kernel(const T* logits, Targets targets, const Compute<T>* log_sum_exp,
                                  const Compute<T>* dloss, const double* inverse_count, T* dlogits,
                                  std::int64_t rows, std::int64_t vocabulary, std::int64_t stride,
                                  Fault* fault) {
  using C = Compute<T>;
  const C scale = static_cast<C>(*inverse_count * static_cast<double>(*dloss));
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = logits + row * stride;
    T* to = dlogits + row * stride;
    const std::int64_t target = targets.indices[row];
    const bool valid = target >= 0 && target < vocabulary;
    const bool counts = valid && target != targets.ignore;
    if (!valid && target != targets.ignore && threadIdx.x == 0) {
      report_fault(fault, Fault::cross_entropy_target, row, target, vocabulary);
    }
    const C shift = log_sum_exp[row];
    for_elements<threads>(
        vocabulary,
        [&](std::int64_t i, auto count) {
          constexpr int size = decltype(count)::value;
          C values[size];
          load_elements(from + i, values);
#pragma unroll
          for (int k = 0; k < size; ++k) {
            const C probability = exponential(values[k] - shift);
            const C gradient = i + k == target ? probability - C{1} : probability;
            values[k] = counts ? scale * gradient : C{0};
          }
          store_elements(to + i, values);
        },
        from, to);
  }
}

template <class Arguments>
void check(const char* kernel, const Arguments& a) {
  if (a.stride < a.vocabulary)
    misuse_of(kernel, "the row stride is below the vocabulary", a.stride);
}

// Bytes from the first logit to the last.
template <class T, class Arguments>
std::int64_t bytes_of_logits(const Arguments& a) {
  if (a.rows == 0) return 0;
  return ((a.rows - 1) * a.stride + a.vocabulary) * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForward& a, Queue queue) {
  check("cross_entropy_forward", a);
  Context& context = context_of(queue);
  const Indices targets = indices_of(a.targets, a.target_dtype, "cross_entropy_forward");
  for_floating(a.dtype, "cross_entropy_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const auto statistics = a.rows * static_cast<std::int64_t>(sizeof(C));
    for_threads_of_row<T>(a.vocabulary, [&](auto count) {
      constexpr int threads = decltype(count)::value;
      launch(context,
             {"cross_entropy_forward",
              {a.rows, a.vocabulary},
              {reads(a.logits, bytes_of_logits<T>(a)), reads(targets, a.rows),
               writes(a.loss, statistics), writes(a.log_sum_exp, statistics)}},
             {blocks_for(a.rows, 1), threads}, cross_entropy_forward_kernel<T, threads>,
             static_cast<const T*>(a.logits), Targets{targets, a.ignore}, static_cast<C*>(a.loss),
             static_cast<C*>(a.log_sum_exp), a.rows, a.vocabulary, a.stride, context.fault);
    });
  });
}

void cross_entropy_backward(const CrossEntropyBackward& a, Queue queue) {
  check("cross_entropy_backward", a);
  Context& context = context_of(queue);
  const Indices targets = indices_of(a.targets, a.target_dtype, "cross_entropy_backward");
  for_floating(a.dtype, "cross_entropy_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const auto bytes = bytes_of_logits<T>(a);
    for_threads_of_row<T>(a.vocabulary, [&](auto count) {
      constexpr int threads = decltype(count)::value;
      launch(context,
             {"cross_entropy_backward",
              {a.rows, a.vocabulary},
              {reads(a.logits, bytes), reads(targets, a.rows),
               reads(a.log_sum_exp, a.rows * static_cast<std::int64_t>(sizeof(C))),
               reads(a.dloss, sizeof(C)), reads(a.inverse_count, sizeof(double)),
               writes(a.dlogits, bytes)}},
             {blocks_for(a.rows, 1), threads}, cross_entropy_backward_kernel<T, threads>,
             static_cast<const T*>(a.logits), Targets{targets, a.ignore},
             static_cast<const C*>(a.log_sum_exp), static_cast<const C*>(a.dloss), a.inverse_count,
             static_cast<T*>(a.dlogits), a.rows, a.vocabulary, a.stride, context.fault);
    });
  });
}

}  // namespace tessera::kernels::cuda
