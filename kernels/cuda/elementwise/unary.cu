// Unary functions and their backward.
#include "kernels/cuda/device/activation_math.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

template <UnaryOp op, class C>
__device__ __forceinline__ C value_of(C x) {
  if constexpr (op == UnaryOp::negate) return -x;
  if constexpr (op == UnaryOp::relu) return x < C(0) ? C(0) : x;  // NaN passes
  if constexpr (op == UnaryOp::gelu_erf) return gelu_erf(x);
  if constexpr (op == UnaryOp::gelu_tanh) return gelu_tanh(x);
  if constexpr (op == UnaryOp::silu) return silu(x);
  if constexpr (op == UnaryOp::tanh) return hyperbolic_tangent(x);
  if constexpr (op == UnaryOp::sigmoid) return sigmoid(x);
  if constexpr (op == UnaryOp::exp) return exponential(x);
  if constexpr (op == UnaryOp::log) return logarithm(x);
  if constexpr (op == UnaryOp::sqrt) return square_root(x);
  if constexpr (op == UnaryOp::square) return x * x;
}

// dout * f'(x).
template <UnaryOp op, class C>
__device__ __forceinline__ C gradient_of(C dout, C x) {
  if constexpr (op == UnaryOp::negate) return -dout;
  if constexpr (op == UnaryOp::relu) return x <= C(0) ? C(0) : dout;
  if constexpr (op == UnaryOp::gelu_erf) return dout * gelu_erf_derivative(x);
  if constexpr (op == UnaryOp::gelu_tanh) return dout * gelu_tanh_derivative(x);
  if constexpr (op == UnaryOp::silu) return dout * silu_derivative(x);
  if constexpr (op == UnaryOp::tanh) {
    const C t = hyperbolic_tangent(x);
    return dout * fused(-t, t, C(1));
  }
  if constexpr (op == UnaryOp::sigmoid) {
    const SigmoidPair<C> s = sigmoid_with_complement(x);
    return dout * (s.value * s.complement);
  }
  if constexpr (op == UnaryOp::exp) return dout * exponential(x);
  if constexpr (op == UnaryOp::log) return dout / x;
  if constexpr (op == UnaryOp::sqrt) return dout * C(0.5) / square_root(x);
  if constexpr (op == UnaryOp::square) return dout * (x + x);
}

void require_known(const char* kernel, UnaryOp op) {
  if (op > UnaryOp::square) {
    misuse_of(kernel, "unknown operation", static_cast<std::int64_t>(op));
  }
}

// out[i] = f(x[i]). x, out: [n] of T; out may be x. Reads and writes n*sizeof(T) bytes.
template <class T>
__global__ void unary_kernel(Layout layout, UnaryOp op, const T* x, T* out) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> values[width];
    place.load(x, values);
    for_unary_op(op, [&](auto tag) {
#pragma unroll
      for (int k = 0; k < width; ++k) values[k] = value_of<decltype(tag)::value>(values[k]);
    });
    place.store(out, values);
  });
}

// dx[i] = dout[i] * f'(x[i]), or dx[i] += when accumulate. All [n] of T; dx may be dout or x. Reads
// 2n*sizeof(T) bytes, writes n*sizeof(T), and reads as many more when accumulating.
template <class T>
__global__ void unary_backward_kernel(Layout layout, UnaryOp op, const T* dout, const T* x, T* dx,
                                      bool accumulate) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> gradients[width], inputs[width];
    place.load(dout, gradients);
    place.load(x, inputs);
    for_unary_op(op, [&](auto tag) {
#pragma unroll
      for (int k = 0; k < width; ++k) {
        gradients[k] = gradient_of<decltype(tag)::value>(gradients[k], inputs[k]);
      }
    });
    if (accumulate) {
      place.load(dx, inputs);
#pragma unroll
      for (int k = 0; k < width; ++k) gradients[k] = inputs[k] + gradients[k];
    }
    place.store(dx, gradients);
  });
}

}  // namespace

void unary(const Unary& a, Queue queue) {
  require_known("unary", a.op);
  for_floating(a.dtype, "unary", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const auto bytes = a.n * sizeof(T);
    const Layout layout = layout_of<width>(a.n, {{a.x, sizeof(T)}, {a.out, sizeof(T)}});
    launch(context_of(queue), {"unary", {a.n}, {reads(a.x, bytes), writes(a.out, bytes)}},
           configuration_of<width>(layout), unary_kernel<T>, layout, a.op,
           static_cast<const T*>(a.x), static_cast<T*>(a.out));
  });
}

void unary_backward(const UnaryBackward& a, Queue queue) {
  require_known("unary_backward", a.op);
  for_floating(a.dtype, "unary_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const auto bytes = a.n * sizeof(T);
    const Layout layout =
        layout_of<width>(a.n, {{a.dout, sizeof(T)}, {a.x, sizeof(T)}, {a.dx, sizeof(T)}});
    launch(context_of(queue),
           {"unary_backward",
            {a.n},
            {reads(a.dout, bytes), reads(a.x, bytes), reads(a.accumulate ? a.dx : nullptr, bytes),
             writes(a.dx, bytes)}},
           configuration_of<width>(layout), unary_backward_kernel<T>, layout, a.op,
           static_cast<const T*>(a.dout), static_cast<const T*>(a.x), static_cast<T*>(a.dx),
           a.accumulate);
  });
}

}  // namespace tessera::kernels::cuda
