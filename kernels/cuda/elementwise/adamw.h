// AdamW's arithmetic on a GPU, and steps of optimizers with ranges of weight decay.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/map.h"
#include "kernels/optimizer.h"

namespace tessera::kernels::cuda {

// kernels::DecayRanges as an argument of a kernel; a step over more edges takes several launches.
constexpr int most_edges = 64;
struct DecayEdges {
  int count = -1;  // -1: everything decays
  std::int64_t edges[most_edges] = {};

  // The number of edges at or before an element: odd inside a range.
  __device__ __forceinline__ int before(std::int64_t element) const {
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (edges[middle] <= element) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  // out[k] = `decay` where element k of the place decays, else 0.
  template <int width, class T>
  __device__ __forceinline__ void choose(const Place<width>& place, T decay,
                                         T (&out)[width]) const {
    int passed = count < 0 ? 1 : before(place.index(0));
#pragma unroll
    for (int k = 0; k < width; ++k) {
      while (passed < count && edges[passed] <= place.index(k)) ++passed;
      out[k] = passed % 2 == 1 ? decay : T{0};
    }
  }
};

inline void* at(void* memory, std::int64_t element, DType dtype) {
  if (memory == nullptr) return nullptr;
  return static_cast<std::byte*>(memory) + static_cast<std::size_t>(element) * size_of(dtype);
}
inline const void* at(const void* memory, std::int64_t element, DType dtype) {
  return static_cast<const std::byte*>(memory) + static_cast<std::size_t>(element) * size_of(dtype);
}

// Calls body(step, edges) for parts of the step, each with at most as many edges as an argument
// holds. part_of(step, first, count) is the step on some of its elements.
template <class Step, class PartOf, class Body>
void for_parts(const Step& a, const PartOf& part_of, Body&& body) {
  if (a.decay.edges == nullptr) return body(a, DecayEdges{});
  std::int64_t first = 0;
  int passed = 0;
  do {
    const int taken = std::min(most_edges - 1, a.decay.count - passed);
    const bool last = passed + taken == a.decay.count;
    const std::int64_t end = last ? a.n : a.decay.edges[passed + taken];
    DecayEdges edges{0};
    // Between two edges of a range: the part begins with an edge.
    if (passed % 2 == 1) edges.edges[edges.count++] = 0;
    for (int i = passed; i < passed + taken; ++i) {
      edges.edges[edges.count++] = a.decay.edges[i] - first;
    }
    body(part_of(a, first, end - first), edges);
    first = end;
    passed += taken;
  } while (first < a.n);
}

// Calls body(TypeTag<T>, TypeTag<Grad>) for the types of parameters and gradients: float or double,
// and any type that is not wider.
template <class Step, class Body>
void for_step_types(const char* kernel, const Step& a, Body&& body) {
  if (a.dtype != DType::float32 && a.dtype != DType::float64) unsupported(kernel, a.dtype);
  const auto fits = [&](DType dtype) {
    return is_floating(dtype) && (dtype != DType::float64 || a.dtype == DType::float64);
  };
  if (!fits(a.grad_dtype)) unsupported(kernel, a.grad_dtype);
  if constexpr (requires { a.copy; }) {
    if (a.copy != nullptr && !fits(a.copy_dtype)) unsupported(kernel, a.copy_dtype);
  }
  for_floating(a.grad_dtype, kernel, [&](auto grad_tag) {
    using Grad = typename decltype(grad_tag)::type;
    if (a.dtype == DType::float64) return body(TypeTag<double>{}, grad_tag);
    if constexpr (!std::is_same_v<Grad, double>) body(TypeTag<float>{}, grad_tag);
  });
}

// The hyper-parameters of AdamW, combined in fp64 and rounded to the parameters' type.
template <class T>
struct AdamWScalars {
  T grad_scale, decay, beta1, beta2, rest1, rest2, step, root_correction2, eps;

  template <class Arguments>
  explicit AdamWScalars(const Arguments& a)
      : grad_scale(static_cast<T>(a.grad_scale)),
        decay(static_cast<T>(a.lr * a.weight_decay)),
        beta1(static_cast<T>(a.beta1)),
        beta2(static_cast<T>(a.beta2)),
        rest1(static_cast<T>(1.0 - a.beta1)),
        rest2(static_cast<T>(1.0 - a.beta2)),
        step(static_cast<T>(a.lr / a.correction1)),
        root_correction2(static_cast<T>(std::sqrt(a.correction2))),
        eps(static_cast<T>(a.eps)) {}

  __device__ __forceinline__ void update(T& param, T grad, T& m, T& v, T decay_here) const {
    const T g = product(grad, grad_scale);
    param = param - product(decay_here, param);
    m = product(beta1, m) + product(rest1, g);
    v = product(beta2, v) + product(product(rest2, g), g);
    const T denominator = square_root(v) / root_correction2 + eps;
    param = param - product(step, m) / denominator;
  }
};

}  // namespace tessera::kernels::cuda
