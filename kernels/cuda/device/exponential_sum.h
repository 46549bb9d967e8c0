// The sum of exponentials of a row in one pass over it, shared by softmax and cross-entropy.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/row.h"

namespace tessera::kernels::cuda {

template <class C>
__device__ __forceinline__ bool is_finite(C value) {
  return value - value == C{0};
}

// The sum of e^(x - shift) over a row; shift is the row's maximum, or 0 if that is not finite.
template <class C>
struct ExponentialSum {
  C sum;
  C shift;
};

// Every thread processes its groups with its own maximum and sum, and scales the sum when a group
// has a new maximum; then the threads' sums are combined. A NaN may not appear in the maximum, but
// it reaches the sum. All threads of the block call it and get the result. Bytes: the row, once.
template <int threads, class T>
__device__ __forceinline__ ExponentialSum<Compute<T>> exponential_sum(const T* row,
                                                                      std::int64_t n) {
  using C = Compute<T>;
  constexpr std::int64_t width = Vector<T>::size;
  const C lowest = -static_cast<C>(INFINITY);
  C maximum = lowest;
  C sum = 0;
  for (std::int64_t first = threadIdx.x * width; first < n; first += threads * width) {
    const Vector<T> group = load_of_row(row, first, n, lowest);
    C largest = maximum;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const C value = to_compute(group.value[k]);
      largest = value > largest ? value : largest;
    }
    if (largest > maximum) {
      if (is_finite(maximum)) sum *= exponential(maximum - largest);
      maximum = largest;
    }
    const C shift = is_finite(maximum) ? maximum : C{0};
    C group_sum = 0;
#pragma unroll
    for (int k = 0; k < width; ++k) group_sum += exponential(to_compute(group.value[k]) - shift);
    sum += group_sum;
  }
  const C largest = block_maximum<threads>(maximum);
  // A thread that read only -Inf, or no element, has a sum of 0 (or NaN), which is valid for every
  // shift.
  if (is_finite(maximum)) sum *= exponential(maximum - largest);
  return {block_sum<threads>(sum), is_finite(largest) ? largest : C{0}};
}

}  // namespace tessera::kernels::cuda
