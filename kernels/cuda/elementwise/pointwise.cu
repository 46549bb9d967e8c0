// PointwiseOp: functions of one to four operands with broadcasting.
#include "kernels/cuda/device/activation_math.h"
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/strided.h"
#include "kernels/cuda/device/trigonometry.h"

namespace tessera::kernels::cuda {
namespace {

template <class C>
__device__ __forceinline__ C softplus_of(C x, C beta, C threshold) {
  const C scaled = x * beta;
  if (scaled > threshold || x != x) return x;
  const C positive = scaled > C(0) ? scaled : C(0);
  return (positive + logarithm_of_one_plus(exponential(-(scaled < C(0) ? -scaled : scaled)))) /
         beta;
}

template <class C>
__device__ __forceinline__ C sign_of(C x) {
  if (x != x) return x;
  return x > C(0) ? C(1) : (x < C(0) ? C(-1) : x);
}

template <PointwiseOp op, class C>
__device__ __forceinline__ C arithmetic_of(C a, C b, C c, C d) {
  if constexpr (op == PointwiseOp::add) return a + b;
  if constexpr (op == PointwiseOp::subtract) return a - b;
  if constexpr (op == PointwiseOp::multiply) return product(a, b);
  if constexpr (op == PointwiseOp::divide) return a / b;
  if constexpr (op == PointwiseOp::minimum) return a < b || a != a ? a : b;
  if constexpr (op == PointwiseOp::maximum) return a > b || a != a ? a : b;
  if constexpr (op == PointwiseOp::power) return power(a, b);
  if constexpr (op == PointwiseOp::absolute) return a != a ? a : (a < C(0) ? -a : a + C(0));
  if constexpr (op == PointwiseOp::sign) return sign_of(a);
  if constexpr (op == PointwiseOp::reciprocal) return C(1) / a;
  if constexpr (op == PointwiseOp::reciprocal_sqrt) return C(1) / square_root(a);
  if constexpr (op == PointwiseOp::sine) return sine(a);
  if constexpr (op == PointwiseOp::cosine) return cosine(a);
  if constexpr (op == PointwiseOp::softplus) return softplus_of(a, b, c);
  if constexpr (op == PointwiseOp::clamp) {
    const C raised = a < b ? b : a;
    return raised > c ? c : raised;
  }
  if constexpr (op == PointwiseOp::minimum_gradient)
    return b > c ? C(0) : (b == c ? a * C(0.5) : a);
  if constexpr (op == PointwiseOp::maximum_gradient)
    return b < c ? C(0) : (b == c ? a * C(0.5) : a);
  if constexpr (op == PointwiseOp::divisor_gradient) return -(product(a / c, b) / c);
  if constexpr (op == PointwiseOp::power_gradient) {
    return c == C(0) ? C(0) : product(a, product(c, power(b, c - C(1))));
  }
  if constexpr (op == PointwiseOp::power_exponent_gradient) {
    return b == C(0) && c >= C(0) ? C(0) : product(a, product(power(b, c), logarithm(b)));
  }
  if constexpr (op == PointwiseOp::absolute_gradient) return product(a, sign_of(b));
  if constexpr (op == PointwiseOp::reciprocal_gradient) return -(a / product(b, b));
  if constexpr (op == PointwiseOp::reciprocal_sqrt_gradient) {
    return product(a, C(-0.5)) / product(b, square_root(b));
  }
  if constexpr (op == PointwiseOp::sine_gradient) return product(a, cosine(b));
  if constexpr (op == PointwiseOp::cosine_gradient) return -product(a, sine(b));
  if constexpr (op == PointwiseOp::softplus_gradient) {
    const C scaled = product(b, c);
    return scaled > d ? a : product(a, sigmoid(scaled));
  }
  if constexpr (op == PointwiseOp::clamp_gradient) return b >= c && b <= d ? a : C(0);
  return C(0);
}

template <PointwiseOp op, class C>
__device__ __forceinline__ bool comparison_of(C a, C b) {
  if constexpr (op == PointwiseOp::equal) return a == b;
  if constexpr (op == PointwiseOp::not_equal) return a != b;
  if constexpr (op == PointwiseOp::less) return a < b;
  if constexpr (op == PointwiseOp::less_equal) return a <= b;
  if constexpr (op == PointwiseOp::greater) return a > b;
  if constexpr (op == PointwiseOp::greater_equal) return a >= b;
  if constexpr (op == PointwiseOp::logical_and) return a != C(0) && b != C(0);
  if constexpr (op == PointwiseOp::logical_or) return a != C(0) || b != C(0);
  if constexpr (op == PointwiseOp::logical_not) return a == C(0);
  return false;
}

// The operands of a launch: null memory is the number, also of operands that the function lacks.
// `flat`: the arrays are adjacent, or numbers.
template <class N>
struct Operands {
  const void* in[most_operands];
  N number[most_operands];
  StridedShape<most_operands> shape;
  bool flat;
};

// Elements of a thread: few, because a thread holds them of four operands.
template <class T>
inline constexpr int pointwise_width = width_for<T> < 4 ? width_for<T> : 4;

// The place's elements of operand k.
template <int k, class T, int width>
__device__ __forceinline__ void load_operand(const Place<width>& place,
                                             const Operands<Compute<T>>& operands,
                                             Compute<T> (&to)[width]) {
  const auto* from = static_cast<const T*>(operands.in[k]);
  if (from == nullptr) {
#pragma unroll
    for (int i = 0; i < width; ++i) to[i] = operands.number[k];
  } else if (operands.flat) {
    place.load(from, to);
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      std::int64_t offset[most_operands] = {};
      if (place.holds(place.index(i))) {
        strided_offsets(operands.shape, operands.shape.dimensions, place.index(i), offset);
      }
      to[i] = to_compute(from[offset[k]]);
    }
  }
}

// out[i] = f(operands), floating. Bytes: each operand once; writes n*sizeof(T).
template <class T>
__global__ void pointwise_kernel(Layout layout, PointwiseOp op, Operands<Compute<T>> operands,
                                 T* out) {
  constexpr int width = pointwise_width<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> a[width], b[width], c[width], d[width];
    load_operand<0, T>(place, operands, a);
    load_operand<1, T>(place, operands, b);
    load_operand<2, T>(place, operands, c);
    load_operand<3, T>(place, operands, d);
    for_pointwise_op(op, [&](auto tag) {
#pragma unroll
      for (int i = 0; i < width; ++i) {
        a[i] = arithmetic_of<decltype(tag)::value>(a[i], b[i], c[i], d[i]);
      }
    });
    place.store(out, a);
  });
}

// T's value as N: the compute type, or int64.
template <class N, class T>
__device__ __forceinline__ N number_of(T value) {
  if constexpr (std::is_same_v<N, std::int64_t>) {
    return static_cast<std::int64_t>(value);
  } else {
    return to_compute(value);
  }
}

// out[i] = a[i] compared with b[i], or logic, as one byte. Bytes: each operand once; writes n.
template <class T, class N>
__global__ void comparison_kernel(std::int64_t n, PointwiseOp op, Operands<N> operands,
                                  std::uint8_t* out) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    std::int64_t offset[most_operands];
    strided_offsets(operands.shape, operands.shape.dimensions, i, offset);
    const auto* left = static_cast<const T*>(operands.in[0]);
    const auto* right = static_cast<const T*>(operands.in[1]);
    const N a = left == nullptr ? operands.number[0] : number_of<N>(left[offset[0]]);
    const N b = right == nullptr ? operands.number[1] : number_of<N>(right[offset[1]]);
    bool result = false;
    for_pointwise_op(op, [&](auto tag) { result = comparison_of<decltype(tag)::value>(a, b); });
    out[i] = result ? 1 : 0;
  }
}

// out[i] = condition[i] ? a[i] : b[i]; the numbers are already T. Bytes: each operand once; writes
// n*sizeof(T).
template <class T>
__global__ void select_kernel(std::int64_t n, Operands<T> operands, T* out) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    std::int64_t offset[most_operands];
    strided_offsets(operands.shape, operands.shape.dimensions, i, offset);
    const auto* condition = static_cast<const std::uint8_t*>(operands.in[0]);
    const auto* yes = static_cast<const T*>(operands.in[1]);
    const auto* no = static_cast<const T*>(operands.in[2]);
    const T a = yes == nullptr ? operands.number[1] : yes[offset[1]];
    const T b = no == nullptr ? operands.number[2] : no[offset[2]];
    out[i] = condition[offset[0]] != 0 ? a : b;
  }
}

template <class N>
Operands<N> operands_for(const Pointwise& a, const StridedShape<most_operands>& shape) {
  Operands<N> operands{};
  operands.shape = shape;
  operands.flat = shape.dimensions == 1;
  for (int k = 0; k < most_operands; ++k) {
    operands.in[k] = k < operands_of(a.op) ? a.in[k] : nullptr;
    operands.number[k] = round_once<N>(a.number[k]);
    if (operands.in[k] != nullptr && shape.strides[k][0] != 1) operands.flat = false;
  }
  return operands;
}

Access read_of(const Pointwise& a, const StridedShape<most_operands>& shape, int k) {
  if (k >= operands_of(a.op)) return reads(static_cast<const void*>(nullptr), 0);
  return reads(a.in[k], span_bytes(shape, k, size_of(dtype_of_operand(a, k))));
}

// Calls body(TypeTag<T>) for the type of any dtype on the device.
template <class Body>
void for_any(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::int32:
      return body(TypeTag<std::int32_t>{});
    case DType::int64:
      return body(TypeTag<std::int64_t>{});
    case DType::uint8:
    case DType::boolean:
      return body(TypeTag<std::uint8_t>{});
    default:
      return for_floating(dtype, "pointwise", body);
  }
}

// The type in which elements are compared.
template <class T>
struct Compared {
  using type = Compute<T>;
};
template <>
struct Compared<std::int32_t> {
  using type = std::int64_t;
};
template <>
struct Compared<std::int64_t> {
  using type = std::int64_t;
};
template <>
struct Compared<std::uint8_t> {
  using type = std::int64_t;
};

template <class T>
void arithmetic(const Pointwise& a, const StridedShape<most_operands>& shape, Context& context) {
  constexpr int width = pointwise_width<T>;
  const std::int64_t n = shape.elements();
  const auto operands = operands_for<Compute<T>>(a, shape);
  Layout layout{n};
  if (operands.flat) {
    layout = layout_of<width>(n, {{operands.in[0], sizeof(T)},
                                  {operands.in[1], sizeof(T)},
                                  {operands.in[2], sizeof(T)},
                                  {operands.in[3], sizeof(T)},
                                  {a.out, sizeof(T)}});
  }
  launch(context,
         {"pointwise",
          {n, static_cast<std::int64_t>(a.op)},
          {read_of(a, shape, 0), read_of(a, shape, 1), read_of(a, shape, 2), read_of(a, shape, 3),
           writes(a.out, n * sizeof(T))}},
         configuration_of<width>(layout), pointwise_kernel<T>, layout, a.op, operands,
         static_cast<T*>(a.out));
}

}  // namespace

void pointwise(const Pointwise& a, Queue queue) {
  if (a.op > PointwiseOp::logical_not) {
    misuse_of("pointwise", "unknown operation", static_cast<std::int64_t>(a.op));
  }
  Context& context = context_of(queue);
  const StridedShape<most_operands> shape = merged(a.shape);
  const std::int64_t n = shape.elements();
  const LaunchConfiguration each = {blocks_for(n, map_threads), map_threads};
  switch (kind_of(a.op)) {
    case PointwiseKind::arithmetic:
      return for_floating(a.dtype, "pointwise", [&](auto tag) {
        arithmetic<typename decltype(tag)::type>(a, shape, context);
      });
    case PointwiseKind::selection:
      return for_any(a.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        launch(context,
               {"pointwise select",
                {n},
                {read_of(a, shape, 0), read_of(a, shape, 1), read_of(a, shape, 2),
                 writes(a.out, n * sizeof(T))}},
               each, select_kernel<T>, n, operands_for<T>(a, shape), static_cast<T*>(a.out));
      });
    case PointwiseKind::comparison:
    case PointwiseKind::logic:
      return for_any(a.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using N = typename Compared<T>::type;
        launch(context,
               {"pointwise comparison",
                {n, static_cast<std::int64_t>(a.op)},
                {read_of(a, shape, 0), read_of(a, shape, 1), writes(a.out, n)}},
               each, comparison_kernel<T, N>, n, a.op, operands_for<N>(a, shape),
               static_cast<std::uint8_t*>(a.out));
      });
  }
}

}  // namespace tessera::kernels::cuda
