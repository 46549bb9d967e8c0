// AdamW, Lion and SGD over flat segments: one pass, in which each element is read and written once,
// independent of all others. Steps have the CPU kernel's operations in the same order, without
// fusing, so parameters equal the CPU's bits and a segment may be split anywhere.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/elementwise/adamw.h"

namespace tessera::kernels::cuda {
namespace {

AdamWStep part_of(AdamWStep a, std::int64_t first, std::int64_t count) {
  a.param = at(a.param, first, a.dtype);
  a.grad = at(a.grad, first, a.grad_dtype);
  a.m = at(a.m, first, a.dtype);
  a.v = at(a.v, first, a.dtype);
  a.copy = at(a.copy, first, a.copy_dtype);
  a.n = count;
  return a;
}

LionStep part_of(LionStep a, std::int64_t first, std::int64_t count) {
  a.param = at(a.param, first, a.dtype);
  a.grad = at(a.grad, first, a.grad_dtype);
  a.m = at(a.m, first, a.dtype);
  a.copy = at(a.copy, first, a.copy_dtype);
  a.n = count;
  return a;
}

SgdStep part_of(SgdStep a, std::int64_t first, std::int64_t count) {
  a.param = at(a.param, first, a.dtype);
  a.grad = at(a.grad, first, a.grad_dtype);
  a.momentum_buffer = at(a.momentum_buffer, first, a.dtype);
  a.copy = at(a.copy, first, a.copy_dtype);
  a.n = count;
  return a;
}

template <class T>
struct LionScalars {
  T grad_scale, decay, beta1, beta2, rest1, rest2, lr;

  explicit LionScalars(const LionStep& a)
      : grad_scale(static_cast<T>(a.grad_scale)),
        decay(static_cast<T>(a.lr * a.weight_decay)),
        beta1(static_cast<T>(a.beta1)),
        beta2(static_cast<T>(a.beta2)),
        rest1(static_cast<T>(1.0 - a.beta1)),
        rest2(static_cast<T>(1.0 - a.beta2)),
        lr(static_cast<T>(a.lr)) {}

  __device__ __forceinline__ void update(T& param, T grad, T& m, T decay_here) const {
    const T g = product(grad, grad_scale);
    param = param - product(decay_here, param);
    const T c = product(beta1, m) + product(rest1, g);
    m = product(beta2, m) + product(rest2, g);
    // lr * sign(c); where c is 0 or NaN: c.
    param = param - (c > 0 ? lr : c < 0 ? -lr : c);
  }
};

template <class T>
struct SgdScalars {
  T grad_scale, lr, momentum, rest, weight_decay;
  bool nesterov, first_step;

  explicit SgdScalars(const SgdStep& a)
      : grad_scale(static_cast<T>(a.grad_scale)),
        lr(static_cast<T>(a.lr)),
        momentum(static_cast<T>(a.momentum)),
        rest(static_cast<T>(1.0 - a.dampening)),
        weight_decay(static_cast<T>(a.weight_decay)),
        nesterov(a.nesterov),
        first_step(a.first_step) {}

  __device__ __forceinline__ T scaled(T param, T grad, T decay_here) const {
    return product(grad, grad_scale) + product(decay_here, param);
  }
  // The direction of the step with momentum; b becomes the new buffer.
  __device__ __forceinline__ T direction(T g, T& b) const {
    b = first_step ? g : product(momentum, b) + product(rest, g);
    return nesterov ? g + product(momentum, b) : b;
  }
};

// The new parameters rounded to another type; memory null: no copy.
struct ParameterCopy {
  void* memory;
  DType dtype;

  template <int width, class T>
  __device__ __forceinline__ void store(const Place<width>& place, const T (&params)[width]) const {
    if (memory == nullptr) return;
    if (dtype == DType::bfloat16) {
      place.store(static_cast<__nv_bfloat16*>(memory), params);
    } else if (dtype == DType::float16) {
      place.store(static_cast<__half*>(memory), params);
    } else if (dtype == DType::float32) {
      place.store(static_cast<float*>(memory), params);
    } else {
      place.store(static_cast<double*>(memory), params);
    }
  }
};

// One AdamW step. param, m, v: [n] of T (float or double); grad: [n] of Grad; copy: [n] or none.
// Reads n*(3*sizeof(T) + sizeof(Grad)) bytes, writes 3n*sizeof(T) and the copy.
template <class T, class Grad>
__global__ void adamw_kernel(Layout layout, AdamWScalars<T> scalars, DecayEdges edges, T* param,
                             const Grad* grad, T* m, T* v, ParameterCopy copy) {
  constexpr int width = width_for<T, Grad>;
  for_places<width>(layout, [&](const Place<width>& place) {
    T params[width], grads[width], ms[width], vs[width], decays[width];
    edges.choose(place, scalars.decay, decays);
    place.load(param, params);
    place.load(grad, grads);
    place.load(m, ms);
    place.load(v, vs);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      scalars.update(params[k], grads[k], ms[k], vs[k], decays[k]);
    }
    place.store(param, params);
    place.store(m, ms);
    place.store(v, vs);
    copy.store(place, params);
  });
}

// One Lion step. param, m: [n] of T (float or double); grad: [n] of Grad; copy: [n] or none. Reads
// n*(2*sizeof(T) + sizeof(Grad)) bytes, writes 2n*sizeof(T) and the copy.
template <class T, class Grad>
__global__ void lion_kernel(Layout layout, LionScalars<T> scalars, DecayEdges edges, T* param,
                            const Grad* grad, T* m, ParameterCopy copy) {
  constexpr int width = width_for<T, Grad>;
  for_places<width>(layout, [&](const Place<width>& place) {
    T params[width], grads[width], ms[width], decays[width];
    edges.choose(place, scalars.decay, decays);
    place.load(param, params);
    place.load(grad, grads);
    place.load(m, ms);
#pragma unroll
    for (int k = 0; k < width; ++k) scalars.update(params[k], grads[k], ms[k], decays[k]);
    place.store(param, params);
    place.store(m, ms);
    copy.store(place, params);
  });
}

// One SGD step. param, buffer: [n] of T (float or double), buffer null without momentum; grad: [n]
// of Grad; copy: [n] or none. Reads n*(2*sizeof(T) + sizeof(Grad)) bytes, writes 2n*sizeof(T) and
// the copy; without momentum each is n*sizeof(T) less.
template <class T, class Grad>
__global__ void sgd_kernel(Layout layout, SgdScalars<T> scalars, DecayEdges edges, T* param,
                           const Grad* grad, T* buffer, ParameterCopy copy) {
  constexpr int width = width_for<T, Grad>;
  for_places<width>(layout, [&](const Place<width>& place) {
    T params[width], directions[width], decays[width];
    edges.choose(place, scalars.weight_decay, decays);
    place.load(param, params);
    place.load(grad, directions);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      directions[k] = scalars.scaled(params[k], directions[k], decays[k]);
    }
    if (buffer != nullptr) {
      T old[width] = {};
      if (!scalars.first_step) place.load(buffer, old);
#pragma unroll
      for (int k = 0; k < width; ++k) directions[k] = scalars.direction(directions[k], old[k]);
      place.store(buffer, old);
    }
#pragma unroll
    for (int k = 0; k < width; ++k) {
      params[k] = params[k] - product(scalars.lr, directions[k]);
    }
    place.store(param, params);
    copy.store(place, params);
  });
}

// part_of() for for_parts().
constexpr auto taken = [](const auto& step, std::int64_t first, std::int64_t count) {
  return part_of(step, first, count);
};

}  // namespace

void adamw_step(const AdamWStep& whole, Queue queue) {
  for_step_types("adamw_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, taken, [&](const AdamWStep& a, const DecayEdges& edges) {
      const auto bytes = a.n * sizeof(T);
      const Layout layout = layout_of<width>(a.n, {{a.param, sizeof(T)},
                                                   {a.grad, sizeof(Grad)},
                                                   {a.m, sizeof(T)},
                                                   {a.v, sizeof(T)},
                                                   {a.copy, size_of(a.copy_dtype)}});
      launch(context_of(queue),
             {"adamw_step",
              {a.n},
              {reads(a.grad, a.n * sizeof(Grad)), writes(a.param, bytes), writes(a.m, bytes),
               writes(a.v, bytes), writes(a.copy, a.n * size_of(a.copy_dtype))}},
             configuration_of<width>(layout), adamw_kernel<T, Grad>, layout, AdamWScalars<T>(a),
             edges, static_cast<T*>(a.param), static_cast<const Grad*>(a.grad),
             static_cast<T*>(a.m), static_cast<T*>(a.v), ParameterCopy{a.copy, a.copy_dtype});
    });
  });
}

void lion_step(const LionStep& whole, Queue queue) {
  for_step_types("lion_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, taken, [&](const LionStep& a, const DecayEdges& edges) {
      const auto bytes = a.n * sizeof(T);
      const Layout layout = layout_of<width>(a.n, {{a.param, sizeof(T)},
                                                   {a.grad, sizeof(Grad)},
                                                   {a.m, sizeof(T)},
                                                   {a.copy, size_of(a.copy_dtype)}});
      launch(context_of(queue),
             {"lion_step",
              {a.n},
              {reads(a.grad, a.n * sizeof(Grad)), writes(a.param, bytes), writes(a.m, bytes),
               writes(a.copy, a.n * size_of(a.copy_dtype))}},
             configuration_of<width>(layout), lion_kernel<T, Grad>, layout, LionScalars<T>(a),
             edges, static_cast<T*>(a.param), static_cast<const Grad*>(a.grad),
             static_cast<T*>(a.m), ParameterCopy{a.copy, a.copy_dtype});
    });
  });
}

void sgd_step(const SgdStep& whole, Queue queue) {
  if (whole.momentum != 0 && whole.momentum_buffer == nullptr) {
    misuse_of("sgd_step", "momentum needs a momentum buffer; elements", whole.n);
  }
  for_step_types("sgd_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, taken, [&](const SgdStep& a, const DecayEdges& edges) {
      const auto bytes = a.n * sizeof(T);
      T* const buffer = a.momentum != 0 ? static_cast<T*>(a.momentum_buffer) : nullptr;
      const Layout layout = layout_of<width>(a.n, {{a.param, sizeof(T)},
                                                   {a.grad, sizeof(Grad)},
                                                   {buffer, sizeof(T)},
                                                   {a.copy, size_of(a.copy_dtype)}});
      launch(context_of(queue),
             {"sgd_step",
              {a.n},
              {reads(a.grad, a.n * sizeof(Grad)), writes(a.param, bytes), writes(buffer, bytes),
               writes(a.copy, a.n * size_of(a.copy_dtype))}},
             configuration_of<width>(layout), sgd_kernel<T, Grad>, layout, SgdScalars<T>(a), edges,
             static_cast<T*>(a.param), static_cast<const Grad*>(a.grad), buffer,
             ParameterCopy{a.copy, a.copy_dtype});
    });
  });
}

}  // namespace tessera::kernels::cuda
