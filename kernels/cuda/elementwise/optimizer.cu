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

namespace tessera::kernels::cuda {
namespace {

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

void* at(void* memory, std::int64_t element, DType dtype) {
  if (memory == nullptr) return nullptr;
  return static_cast<std::byte*>(memory) + static_cast<std::size_t>(element) * size_of(dtype);
}
const void* at(const void* memory, std::int64_t element, DType dtype) {
  return static_cast<const std::byte*>(memory) + static_cast<std::size_t>(element) * size_of(dtype);
}

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

// Calls body(step, edges) for parts of the step, each with at most as many edges as an argument
// holds.
template <class Step, class Body>
void for_parts(const Step& a, Body&& body) {
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

// The hyper-parameters of AdamW, combined in fp64 and rounded to the parameters' type.
template <class T>
struct AdamWScalars {
  T grad_scale, decay, beta1, beta2, rest1, rest2, step, root_correction2, eps;

  explicit AdamWScalars(const AdamWStep& a)
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

// Calls body(TypeTag<T>, TypeTag<Grad>) for the types of parameters and gradients: float or double,
// and any type that is not wider.
template <class Step, class Body>
void for_types(const char* kernel, const Step& a, Body&& body) {
  if (a.dtype != DType::float32 && a.dtype != DType::float64) unsupported(kernel, a.dtype);
  const auto fits = [&](DType dtype) {
    return is_floating(dtype) && (dtype != DType::float64 || a.dtype == DType::float64);
  };
  if (!fits(a.grad_dtype)) unsupported(kernel, a.grad_dtype);
  if (a.copy != nullptr && !fits(a.copy_dtype)) unsupported(kernel, a.copy_dtype);
  for_floating(a.grad_dtype, kernel, [&](auto grad_tag) {
    using Grad = typename decltype(grad_tag)::type;
    if (a.dtype == DType::float64) return body(TypeTag<double>{}, grad_tag);
    if constexpr (!std::is_same_v<Grad, double>) body(TypeTag<float>{}, grad_tag);
  });
}

}  // namespace

void adamw_step(const AdamWStep& whole, Queue queue) {
  for_types("adamw_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, [&](const AdamWStep& a, const DecayEdges& edges) {
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
  for_types("lion_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, [&](const LionStep& a, const DecayEdges& edges) {
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
  for_types("sgd_step", whole, [&](auto tag, auto grad_tag) {
    using T = typename decltype(tag)::type;
    using Grad = typename decltype(grad_tag)::type;
    constexpr int width = width_for<T, Grad>;
    for_parts(whole, [&](const SgdStep& a, const DecayEdges& edges) {
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
