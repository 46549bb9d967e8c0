// Functions of one to four operands, element by element, with operands that repeat as NumPy's
// broadcasting has them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/strided.h"

namespace tessera::kernels {

// The dtypes of operands and result. arithmetic: `dtype`, floating. comparison: `dtype`, any, to
// boolean. selection: operand 0 is boolean or uint8 (not 0 is true), the others and the result are
// `dtype`, any. logic: boolean or uint8, to boolean.
enum class PointwiseKind : std::uint8_t { arithmetic, comparison, selection, logic };

// X(function, operands, kind). A gradient's first operand g is the gradient of the result.
//   softplus(x, b, t): log(1 + e^(b x)) / b, or x where b x > t.
//   clamp(x, low, high): min(max(x, low), high); its gradient is g from low to high and 0 outside.
//   power_gradient(g, x, y) is x's, power_exponent_gradient(g, x, y) is y's: 0 for y = 0, and for x
//   = 0 with y >= 0. divisor_gradient(g, x, y) = -g x / y^2. maximum_gradient(g, x, y) and
//   minimum_gradient(g, x, y) are x's: half of g where both are equal.
// NaN passes through all of them; every comparison with it is false, except not_equal.
#define TESSERA_POINTWISE_OPS(X)             \
  X(add, 2, arithmetic)                      \
  X(subtract, 2, arithmetic)                 \
  X(multiply, 2, arithmetic)                 \
  X(divide, 2, arithmetic)                   \
  X(minimum, 2, arithmetic)                  \
  X(maximum, 2, arithmetic)                  \
  X(power, 2, arithmetic)                    \
  X(absolute, 1, arithmetic)                 \
  X(sign, 1, arithmetic)                     \
  X(reciprocal, 1, arithmetic)               \
  X(reciprocal_sqrt, 1, arithmetic)          \
  X(sine, 1, arithmetic)                     \
  X(cosine, 1, arithmetic)                   \
  X(softplus, 3, arithmetic)                 \
  X(clamp, 3, arithmetic)                    \
  X(minimum_gradient, 3, arithmetic)         \
  X(maximum_gradient, 3, arithmetic)         \
  X(power_gradient, 3, arithmetic)           \
  X(power_exponent_gradient, 3, arithmetic)  \
  X(absolute_gradient, 2, arithmetic)        \
  X(reciprocal_gradient, 2, arithmetic)      \
  X(divisor_gradient, 3, arithmetic)         \
  X(reciprocal_sqrt_gradient, 2, arithmetic) \
  X(sine_gradient, 2, arithmetic)            \
  X(cosine_gradient, 2, arithmetic)          \
  X(softplus_gradient, 4, arithmetic)        \
  X(clamp_gradient, 4, arithmetic)           \
  X(equal, 2, comparison)                    \
  X(not_equal, 2, comparison)                \
  X(less, 2, comparison)                     \
  X(less_equal, 2, comparison)               \
  X(greater, 2, comparison)                  \
  X(greater_equal, 2, comparison)            \
  X(select, 3, selection)                    \
  X(logical_and, 2, logic)                   \
  X(logical_or, 2, logic)                    \
  X(logical_not, 1, logic)

enum class PointwiseOp : std::uint8_t {
#define TESSERA_POINTWISE_ENUMERATOR(name, operands, kind) name,
  TESSERA_POINTWISE_OPS(TESSERA_POINTWISE_ENUMERATOR)
#undef TESSERA_POINTWISE_ENUMERATOR
};

inline constexpr int most_operands = 4;

constexpr int operands_of(PointwiseOp op) {
  constexpr int counts[] = {
#define TESSERA_POINTWISE_COUNT(name, operands, kind) operands,
      TESSERA_POINTWISE_OPS(TESSERA_POINTWISE_COUNT)
#undef TESSERA_POINTWISE_COUNT
  };
  return counts[static_cast<int>(op)];
}

constexpr PointwiseKind kind_of(PointwiseOp op) {
  constexpr PointwiseKind kinds[] = {
#define TESSERA_POINTWISE_KIND(name, operands, kind) PointwiseKind::kind,
      TESSERA_POINTWISE_OPS(TESSERA_POINTWISE_KIND)
#undef TESSERA_POINTWISE_KIND
  };
  return kinds[static_cast<int>(op)];
}

template <PointwiseOp op>
using PointwiseOpTag = std::integral_constant<PointwiseOp, op>;

// Calls body(PointwiseOpTag<op>{}). constexpr, because kernels of CUDA call it too.
template <class Body>
[[gnu::always_inline]] inline constexpr void for_pointwise_op(PointwiseOp op, Body&& body) {
  switch (op) {
#define TESSERA_POINTWISE_CASE(name, operands, kind) \
  case PointwiseOp::name:                            \
    return body(PointwiseOpTag<PointwiseOp::name>{});
    TESSERA_POINTWISE_OPS(TESSERA_POINTWISE_CASE)
#undef TESSERA_POINTWISE_CASE
  }
}

// out[i] = f(operand 0, operand 1, ...), `out` contiguous in the shape's sizes. An absent operand
// is its number. An operand may be `out` if it has the same dtype and repeats nothing. Arithmetic
// is fp32 (fp64 for fp64) and rounds once on store; integers and booleans are compared and selected
// as int64. Bytes: each operand's elements once, and `out`.
struct Pointwise {
  PointwiseOp op;
  const void* in[most_operands] = {};
  double number[most_operands] = {};  // of the operands without memory
  void* out;
  StridedShape<most_operands> shape;
  DType dtype;
  DType condition = DType::boolean;  // of select's operand 0
};

constexpr DType dtype_of_operand(const Pointwise& a, int operand) {
  return kind_of(a.op) == PointwiseKind::selection && operand == 0 ? a.condition : a.dtype;
}
constexpr DType dtype_of_result(const Pointwise& a) {
  const PointwiseKind kind = kind_of(a.op);
  return kind == PointwiseKind::comparison || kind == PointwiseKind::logic ? DType::boolean
                                                                           : a.dtype;
}

}  // namespace tessera::kernels
