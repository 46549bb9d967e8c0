// Adafactor's directions and steps over parts of parameters. The operations are the CPU kernel's in
// the same order, without fusing: the bits are the same.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// The scalars of a step in the parameter's type, and the totals of which it makes its coefficient.
template <class T>
struct AdafactorScalars {
  T grad_scale, weight, rest, least, decay;
  double rate, least_scale, clip_threshold, size;
  const double* param_total;
  const double* direction_total;
  bool moves;

  explicit AdafactorScalars(const AdafactorStep& a)
      : grad_scale(static_cast<T>(a.grad_scale)),
        weight(static_cast<T>(a.weight)),
        rest(static_cast<T>(1.0 - a.weight)),
        least(static_cast<T>(a.eps * a.eps)),
        decay(static_cast<T>(a.decay)),
        rate(a.rate),
        least_scale(a.least_scale),
        clip_threshold(a.clip_threshold),
        size(a.size),
        param_total(a.param_total),
        direction_total(a.direction_total),
        moves(a.weight > 0) {}

  __device__ __forceinline__ T direction(T g, T v) const {
    return g / square_root(v < least ? least : v);
  }
  __device__ __forceinline__ T moved(T v, T g) const {
    return product(rest, v) + product(product(weight, g), g);
  }
  __device__ __forceinline__ T coefficient() const {
    const double size_of_param = square_root(*param_total / size);
    const double excess = square_root(*direction_total / size) / clip_threshold;
    const double scale = least_scale < size_of_param ? size_of_param : least_scale;
    return static_cast<T>(product(rate, scale) / (1.0 < excess ? excess : 1.0));
  }
};

// The factors of a stack of matrices, whose element `first` is the first one of the step. Without
// row_factors: a vector.
template <class T>
struct AdafactorFactors {
  const T* row_factors;
  const T* column_var;
  std::int64_t first, rows, columns;

  // v of elements of the step, which are neighbours from place.index(0) on if the place is grouped.
  template <int width>
  __device__ __forceinline__ void estimate(const Place<width>& place, T (&v)[width]) const {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      v[k] = 0;
      if (!place.holds(place.index(k))) continue;
      const Quotient at = divide(first + place.index(k), columns);
      const std::int64_t matrix = divide(at.quotient, rows).quotient;
      v[k] = product(row_factors[at.quotient], column_var[matrix * columns + at.remainder]);
    }
  }
};

// grad: [n] of Grad; variance, direction, param: [n] of T, each may be null. Bytes: see
// kernels/adafactor.h.
template <class T, class Grad>
__global__ void adafactor_kernel(Layout layout, AdafactorScalars<T> scalars,
                                 AdafactorFactors<T> factors, const Grad* grad, T* variance,
                                 T* direction, T* param) {
  constexpr int width = width_for<T, Grad>;
  const T coefficient = param == nullptr ? T{0} : scalars.coefficient();
  for_places<width>(layout, [&](const Place<width>& place) {
    T grads[width], v[width];
    place.load(grad, grads);
    if (factors.row_factors != nullptr) {
      factors.estimate(place, v);
    } else {
      place.load(variance, v);
    }
#pragma unroll
    for (int k = 0; k < width; ++k) grads[k] = product(grads[k], scalars.grad_scale);
    if (factors.row_factors == nullptr && scalars.moves) {
#pragma unroll
      for (int k = 0; k < width; ++k) v[k] = scalars.moved(v[k], grads[k]);
      place.store(variance, v);
    }
    T u[width];
#pragma unroll
    for (int k = 0; k < width; ++k) u[k] = scalars.direction(grads[k], v[k]);
    if (direction != nullptr) place.store(direction, u);
    if (param == nullptr) return;
    T params[width];
    place.load(param, params);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const T decayed = params[k] - product(scalars.decay, params[k]);
      params[k] = decayed - product(coefficient, u[k]);
    }
    place.store(param, params);
  });
}

template <class T, class Grad>
void run_adafactor(const AdafactorStep& a, Queue queue) {
  constexpr int width = width_for<T, Grad>;
  const auto bytes = a.n * static_cast<std::int64_t>(sizeof(T));
  const bool is_matrix = a.row_factors != nullptr;
  const std::int64_t matrices = is_matrix ? (a.first + a.n - 1) / (a.rows * a.columns) + 1 : 0;
  const auto rows = matrices * a.rows * static_cast<std::int64_t>(sizeof(T));
  const auto columns = matrices * a.columns * static_cast<std::int64_t>(sizeof(T));
  void* const variance = is_matrix ? nullptr : a.variance;
  const Layout layout = layout_of<width>(a.n, {{a.grad, sizeof(Grad)},
                                               {variance, sizeof(T)},
                                               {a.direction, sizeof(T)},
                                               {a.param, sizeof(T)}});
  const std::int64_t totals = a.param == nullptr ? 0 : 8;
  launch(context_of(queue),
         {"adafactor_step",
          {a.n, a.rows, a.columns},
          {reads(a.grad, a.n * static_cast<std::int64_t>(sizeof(Grad))),
           reads(a.row_factors, rows),
           reads(a.column_var, columns),
           reads(a.param_total, totals),
           reads(a.direction_total, totals),
           {variance, static_cast<std::size_t>(bytes), a.weight > 0},
           writes(a.direction, bytes),
           writes(a.param, bytes)}},
         configuration_of<width>(layout), adafactor_kernel<T, Grad>, layout, AdafactorScalars<T>(a),
         AdafactorFactors<T>{static_cast<const T*>(a.row_factors),
                             static_cast<const T*>(a.column_var), a.first, a.rows, a.columns},
         static_cast<const Grad*>(a.grad), static_cast<T*>(variance), static_cast<T*>(a.direction),
         static_cast<T*>(a.param));
}

}  // namespace

void adafactor_step(const AdafactorStep& a, Queue queue) {
  if (a.dtype != DType::float32 && a.dtype != DType::float64)
    unsupported("adafactor_step", a.dtype);
  if (a.grad_dtype == DType::float64 && a.dtype != DType::float64) {
    unsupported("adafactor_step", a.grad_dtype);
  }
  for_floating(a.grad_dtype, "adafactor_step", [&](auto grad_tag) {
    using Grad = typename decltype(grad_tag)::type;
    if (a.dtype == DType::float64) return run_adafactor<double, Grad>(a, queue);
    if constexpr (!std::is_same_v<Grad, double>) run_adafactor<float, Grad>(a, queue);
  });
}

}  // namespace tessera::kernels::cuda
