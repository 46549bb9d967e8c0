// The errors that kernels/cpu/simd/simd_math-inl.h states for GELU, SiLU and their derivatives:
// every number of bf16, and fp32 in steps, compared with fp64.
#include <array>
#include <bit>

#include "kernels/elementwise.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

struct Exact {
  double value, derivative;
};

Exact logistic_times(double x, double inner, double inner_slope) {
  const double s = 1.0 / (1.0 + std::exp(-inner));
  const double complement = 1.0 / (1.0 + std::exp(inner));
  return {x * s, s * (1.0 + x * complement * inner_slope)};
}

Exact exact_activation(UnaryOp op, double x) {
  if (op == UnaryOp::silu) return logistic_times(x, x, 1.0);
  if (op == UnaryOp::gelu_tanh) {
    const double slope = 2.0 * std::sqrt(2.0 / M_PI);
    return logistic_times(x, slope * (x + 0.044715 * x * x * x),
                          slope * (1.0 + 3.0 * 0.044715 * x * x));
  }
  const double cumulative = 0.5 * std::erfc(-x / std::sqrt(2.0));
  return {x * cumulative, cumulative + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI)};
}

struct ActivationBound {
  UnaryOp op;
  double bf16_ulps;   // of the value in bf16, its rounding included
  double fp32_ulps;   // of the value in fp32, for x in [-5, 5], without fused instructions too
  double derivative;  // absolute, without the rounding to the dtype
};
constexpr std::array activation_bounds = {
    ActivationBound{UnaryOp::gelu_tanh, 0.5, 36, 2e-7},
    ActivationBound{UnaryOp::gelu_erf, 0.5, 21, 2e-7},
    ActivationBound{UnaryOp::silu, 0.5, 6.5, 2e-7},
};

// The distance of neighbouring numbers of T at `value`.
template <class T>
double spacing(double value) {
  constexpr int digits = std::is_same_v<T, BFloat16> ? 8 : 24;
  const int exponent = std::max(std::ilogb(value), -126);
  return std::ldexp(1.0, exponent - (digits - 1));
}

template <class T>
struct Computed {
  std::vector<T> value, derivative;
};

template <class T>
Computed<T> compute_activation(UnaryOp op, const std::vector<T>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  const std::vector<T> ones(x.size(), narrow<T>(1.0));
  Computed<T> out{std::vector<T>(x.size()), std::vector<T>(x.size())};
  cpu::unary({op, x.data(), out.value.data(), n, dtype_of<T>});
  cpu::unary_backward({op, ones.data(), x.data(), out.derivative.data(), n, dtype_of<T>});
  return out;
}

struct Errors {
  double value_ulps = 0, derivative = 0;
};

// Values below this may be 0, because the exponential in their denominator is infinite.
constexpr double least_value = 3e-37;

// The largest errors over finite x.
template <class T>
Errors errors_of(UnaryOp op, const std::vector<T>& x) {
  const Computed<T> computed = compute_activation(op, x);
  Errors errors;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Exact exact = exact_activation(op, widen(x[i]));
    const double value = widen(computed.value[i]);
    const double derivative = widen(computed.derivative[i]);
    const double error =
        std::abs(derivative - exact.derivative) - 0.5 * spacing<T>(exact.derivative);
    if (!(error <= errors.derivative)) errors.derivative = error;
    if (std::abs(exact.value) < least_value) {
      EXPECT_LE(std::abs(value), 1.01 * least_value) << widen(x[i]);
      continue;
    }
    const double ulps = std::abs(value - exact.value) / spacing<T>(exact.value);
    if (!(ulps <= errors.value_ulps)) errors.value_ulps = ulps;
  }
  return errors;
}

TEST(ActivationAccuracy, EveryNumberOfBFloat16) {
  std::vector<BFloat16> finite, nan;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = std::bit_cast<BFloat16>(static_cast<std::uint16_t>(bits));
    const float wide = to_float(value);
    if (std::isfinite(wide)) finite.push_back(value);
    if (std::isnan(wide)) nan.push_back(value);
  }
  for_each_target([&] {
    for (const ActivationBound& bound : activation_bounds) {
      SCOPED_TRACE(static_cast<int>(bound.op));
      const Errors errors = errors_of(bound.op, finite);
      EXPECT_LE(errors.value_ulps, bound.bf16_ulps);
      EXPECT_LE(errors.derivative, bound.derivative);
      const Computed<BFloat16> of_nan = compute_activation(bound.op, nan);
      for (std::size_t i = 0; i < nan.size(); ++i) {
        ASSERT_TRUE(std::isnan(widen(of_nan.value[i]))) << i;
        ASSERT_TRUE(std::isnan(widen(of_nan.derivative[i]))) << i;
      }
    }
  });
}

TEST(ActivationAccuracy, Float32InSteps) {
  std::vector<float> x;
  for (int i = -200'000; i <= 200'000; ++i) x.push_back(static_cast<float>(i) * 2.5e-5f);
  std::vector<float> wide;
  for (int i = -60'000; i <= 60'000; ++i) wide.push_back(static_cast<float>(i) * 2e-3f);
  for_each_target([&] {
    for (const ActivationBound& bound : activation_bounds) {
      SCOPED_TRACE(static_cast<int>(bound.op));
      const Errors errors = errors_of(bound.op, x);
      EXPECT_LE(errors.value_ulps, bound.fp32_ulps);
      EXPECT_LE(errors.derivative, bound.derivative);
      EXPECT_LE(errors_of(bound.op, wide).derivative, bound.derivative);
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::testing
