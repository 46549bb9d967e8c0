// Schedule-free AdamW over flat segments, with the CPU kernel's operations in the same order, so
// that parameters and state have its bits.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/elementwise/adamw.h"

namespace tessera::kernels::cuda {
namespace {

// A point between two, nearer to the one that it starts from.
template <class T>
struct Between {
  bool from_end;
  T part;

  explicit Between(double part_of_end)
      : from_end(part_of_end >= 0.5),
        part(static_cast<T>(from_end ? 1.0 - part_of_end : part_of_end)) {}

  __device__ __forceinline__ T at(T begin, T end) const {
    return from_end ? end + product(part, begin - end) : begin + product(part, end - begin);
  }
};

template <class T>
struct ScheduleFreeScalars {
  T grad_scale, decay, beta2, rest2, lr, root_correction2, eps;
  Between<T> average, point;
  bool first_step;

  explicit ScheduleFreeScalars(const ScheduleFreeStep& a)
      : grad_scale(static_cast<T>(a.grad_scale)),
        decay(static_cast<T>(a.weight_decay)),
        beta2(static_cast<T>(a.beta2)),
        rest2(static_cast<T>(1.0 - a.beta2)),
        lr(static_cast<T>(a.lr)),
        root_correction2(static_cast<T>(std::sqrt(a.correction2))),
        eps(static_cast<T>(a.eps)),
        average(a.part),
        point(1.0 - a.beta1),
        first_step(a.first_step) {}

  __device__ __forceinline__ void update(T& param, T grad, T& z, T& v, T& x, T decay_here) const {
    const T g = product(grad, grad_scale);
    v = product(beta2, v) + product(product(rest2, g), g);
    const T denominator = square_root(v) / root_correction2 + eps;
    const T direction = g / denominator + product(decay_here, param);
    z = z - product(lr, direction);
    x = average.at(x, z);
    param = point.at(x, z);
  }
};

ScheduleFreeStep part_of_schedule_free(ScheduleFreeStep a, std::int64_t first, std::int64_t count) {
  a.param = at(a.param, first, a.dtype);
  a.grad = at(a.grad, first, a.grad_dtype);
  a.z = at(a.z, first, a.dtype);
  a.v = at(a.v, first, a.dtype);
  a.average = at(a.average, first, a.dtype);
  a.n = count;
  return a;
}

// One step. param, z, v, average: [n] of T (float or double); grad: [n] of Grad. Reads
// n*(4*sizeof(T) + sizeof(Grad)) bytes, writes 4n*sizeof(T).
template <class T, class Grad>
__global__ void schedule_free_kernel(Layout layout, ScheduleFreeScalars<T> scalars,
                                     DecayEdges edges, T* param, const Grad* grad, T* z, T* v,
                                     T* average) {
  constexpr int width = width_for<T, Grad>;
  for_places<width>(layout, [&](const Place<width>& place) {
    T params[width], grads[width], zs[width], vs[width], averages[width], decays[width];
    edges.choose(place, scalars.decay, decays);
    place.load(param, params);
    place.load(grad, grads);
    place.load(v, vs);
    place.load(scalars.first_step ? param : z, zs);
    place.load(scalars.first_step ? param : average, averages);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      scalars.update(params[k], grads[k], zs[k], vs[k], averages[k], decays[k]);
    }
    place.store(param, params);
    place.store(z, zs);
    place.store(v, vs);
    place.store(average, averages);
  });
}

// The parameter of the last step. param, z, average: [n]. Reads 2n*sizeof(T) bytes, writes
// n*sizeof(T).
template <class T>
__global__ void schedule_free_point_kernel(Layout layout, Between<T> point, T* param, const T* z,
                                           const T* average) {
  constexpr int width = width_for<T, T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    T params[width], zs[width], averages[width];
    place.load(z, zs);
    place.load(average, averages);
#pragma unroll
    for (int k = 0; k < width; ++k) params[k] = point.at(averages[k], zs[k]);
    place.store(param, params);
  });
}

template <class T>
void launch_point(const ScheduleFreePoint& a, Queue queue) {
  constexpr int width = width_for<T, T>;
  const auto bytes = a.n * sizeof(T);
  const Layout layout =
      layout_of<width>(a.n, {{a.param, sizeof(T)}, {a.z, sizeof(T)}, {a.average, sizeof(T)}});
  launch(context_of(queue),
         {"schedule_free_point",
          {a.n},
          {reads(a.z, bytes), reads(a.average, bytes), writes(a.param, bytes)}},
         configuration_of<width>(layout), schedule_free_point_kernel<T>, layout,
         Between<T>(1.0 - a.beta1), static_cast<T*>(a.param), static_cast<const T*>(a.z),
         static_cast<const T*>(a.average));
}

}  // namespace

void schedule_free_step(const ScheduleFreeStep& whole, Queue queue) {
  for_step_types("schedule_free_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, part_of_schedule_free,
              [&](const ScheduleFreeStep& a, const DecayEdges& edges) {
                const auto bytes = a.n * sizeof(T);
                const Layout layout = layout_of<width>(a.n, {{a.param, sizeof(T)},
                                                             {a.grad, sizeof(Grad)},
                                                             {a.z, sizeof(T)},
                                                             {a.v, sizeof(T)},
                                                             {a.average, sizeof(T)}});
                launch(context_of(queue),
                       {"schedule_free_step",
                        {a.n},
                        {reads(a.grad, a.n * sizeof(Grad)), writes(a.param, bytes),
                         writes(a.z, bytes), writes(a.v, bytes), writes(a.average, bytes)}},
                       configuration_of<width>(layout), schedule_free_kernel<T, Grad>, layout,
                       ScheduleFreeScalars<T>(a), edges, static_cast<T*>(a.param),
                       static_cast<const Grad*>(a.grad), static_cast<T*>(a.z), static_cast<T*>(a.v),
                       static_cast<T*>(a.average));
              });
  });
}

void schedule_free_point(const ScheduleFreePoint& a, Queue queue) {
  if (a.dtype == DType::float32) return launch_point<float>(a, queue);
  if (a.dtype == DType::float64) return launch_point<double>(a, queue);
  unsupported("schedule_free_point", a.dtype);
}

}  // namespace tessera::kernels::cuda
