// Fill, Unary, UnaryBackward, Binary and Affine compared with fp64, on every instruction set of
// this processor.
#include "kernels/elementwise.h"

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

constexpr UnaryOp all_ops[] = {UnaryOp::negate,    UnaryOp::relu,  UnaryOp::gelu_erf,
                               UnaryOp::gelu_tanh, UnaryOp::silu,  UnaryOp::tanh,
                               UnaryOp::sigmoid,   UnaryOp::exp,   UnaryOp::log,
                               UnaryOp::sqrt,      UnaryOp::square};

double gelu_tanh_argument(double x) {
  return std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
}

double value_of(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::negate:
      return -x;
    case UnaryOp::relu:
      return x < 0 ? 0.0 : x;
    case UnaryOp::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case UnaryOp::gelu_tanh:
      return x / (1.0 + std::exp(-2.0 * gelu_tanh_argument(x)));
    case UnaryOp::silu:
      return x / (1.0 + std::exp(-x));
    case UnaryOp::tanh:
      return std::tanh(x);
    case UnaryOp::sigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case UnaryOp::exp:
      return std::exp(x);
    case UnaryOp::log:
      return std::log(x);
    case UnaryOp::sqrt:
      return std::sqrt(x);
    case UnaryOp::square:
      return x * x;
  }
  return 0.0;
}

double derivative_of(UnaryOp op, double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  switch (op) {
    case UnaryOp::negate:
      return -1.0;
    case UnaryOp::relu:
      return x > 0 ? 1.0 : 0.0;
    case UnaryOp::gelu_erf:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI);
    case UnaryOp::gelu_tanh: {
      const double g = 1.0 / (1.0 + std::exp(-2.0 * gelu_tanh_argument(x)));
      const double slope = 2.0 * std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
      return g + x * g * (1.0 - g) * slope;
    }
    case UnaryOp::silu:
      return s * (1.0 + x * (1.0 - s));
    case UnaryOp::tanh:
      return 1.0 - std::tanh(x) * std::tanh(x);
    case UnaryOp::sigmoid:
      return s * (1.0 - s);
    case UnaryOp::exp:
      return std::exp(x);
    case UnaryOp::log:
      return 1.0 / x;
    case UnaryOp::sqrt:
      return 0.5 / std::sqrt(x);
    case UnaryOp::square:
      return 2.0 * x;
  }
  return 0.0;
}

bool needs_positive(UnaryOp op) {
  return op == UnaryOp::log || op == UnaryOp::sqrt;
}

template <class T>
std::vector<T> inputs_for(UnaryOp op, std::int64_t n, unsigned seed) {
  auto values = doubles(normals<T>(n, seed, 2.5));
  if (needs_positive(op)) {
    for (double& value : values) value = std::abs(value) + 0.01;
  }
  return array_of<T>(values);
}

template <class T>
class ElementwiseTest : public ::testing::Test {};
TYPED_TEST_SUITE(ElementwiseTest, FloatingTypes);

TYPED_TEST(ElementwiseTest, UnaryMatchesReference) {
  using T = TypeParam;
  for_each_target([&] {
    for (const UnaryOp op : all_ops) {
      SCOPED_TRACE(static_cast<int>(op));
      for (const std::int64_t n : odd_sizes) {
        auto x = inputs_for<T>(op, n, 1);
        std::vector<double> reference(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) reference[i] = value_of(op, widen(x[i]));
        std::vector<T> out(x.size());
        cpu::unary({op, x.data(), out.data(), n, dtype_of<T>});
        expect_close(out, reference, 100);  // the relative error of e^-x grows with x
        cpu::unary({op, x.data(), x.data(), n, dtype_of<T>});
        expect_same_bits(x, out, "in place");
      }
    }
  });
}

TYPED_TEST(ElementwiseTest, UnaryBackwardMatchesReference) {
  using T = TypeParam;
  for_each_target([&] {
    for (const UnaryOp op : all_ops) {
      SCOPED_TRACE(static_cast<int>(op));
      for (const std::int64_t n : odd_sizes) {
        const auto x = inputs_for<T>(op, n, 2);
        const auto dout = normals<T>(n, 3);
        const auto old = normals<T>(n, 4);
        std::vector<double> reference(x.size()), accumulated(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          reference[i] = widen(dout[i]) * derivative_of(op, widen(x[i]));
          accumulated[i] = widen(old[i]) + reference[i];
        }
        auto dx = dout;  // in place
        cpu::unary_backward({op, dx.data(), x.data(), dx.data(), n, dtype_of<T>});
        expect_close(dx, reference, 12, 8.0);
        dx = old;
        cpu::unary_backward({op, dout.data(), x.data(), dx.data(), n, dtype_of<T>, true});
        expect_close(dx, accumulated, 12, 40.0);
        auto over_x = x;
        cpu::unary_backward({op, dout.data(), over_x.data(), over_x.data(), n, dtype_of<T>});
        expect_close(over_x, reference, 12, 8.0);
      }
    }
  });
}

TYPED_TEST(ElementwiseTest, UnarySpecialValues) {
  using T = TypeParam;
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto x = array_of<T>({nan, inf, -inf, 0.0, -0.0, 60000.0, -60000.0, 88.0, -88.0, -104.0});
  const auto n = static_cast<std::int64_t>(x.size());
  for_each_target([&] {
    for (const UnaryOp op : all_ops) {
      SCOPED_TRACE(static_cast<int>(op));
      std::vector<T> out(x.size());
      cpu::unary({op, x.data(), out.data(), n, dtype_of<T>});
      EXPECT_TRUE(std::isnan(widen(out[0])));
      for (std::size_t i = 3; i < x.size(); ++i) {
        const double reference = value_of(op, widen(x[i]));
        if (std::isnan(reference)) {
          EXPECT_TRUE(std::isnan(widen(out[i]))) << i;
        } else {  // also where the value is outside T's range
          const double rounded = widen(narrow<T>(reference));
          const double bound = std::isinf(rounded) ? 0.0 : 0.01 * std::abs(rounded) + 2e-38;
          if (std::isinf(rounded)) {
            EXPECT_EQ(widen(out[i]), rounded) << i;
          } else {
            EXPECT_NEAR(widen(out[i]), rounded, bound) << i;
          }
        }
      }
      std::vector<T> ones(x.size(), narrow<T>(1.0)), dx(x.size());
      cpu::unary_backward({op, ones.data(), x.data(), dx.data(), n, dtype_of<T>});
      if (op != UnaryOp::negate && op != UnaryOp::relu) {
        EXPECT_TRUE(std::isnan(widen(dx[0])));
      }
      const bool squashing = op == UnaryOp::gelu_erf || op == UnaryOp::gelu_tanh ||
                             op == UnaryOp::silu || op == UnaryOp::tanh || op == UnaryOp::sigmoid;
      for (std::size_t i = 3; squashing && i < x.size(); ++i) {
        EXPECT_NEAR(widen(dx[i]), derivative_of(op, widen(x[i])), 0.01) << i;
      }
    }
    std::vector<T> out(x.size());
    cpu::unary({UnaryOp::exp, x.data(), out.data(), n, dtype_of<T>});
    EXPECT_EQ(widen(out[1]), inf);
    EXPECT_EQ(widen(out[2]), 0.0);
    cpu::unary({UnaryOp::log, x.data(), out.data(), n, dtype_of<T>});
    EXPECT_EQ(widen(out[1]), inf);
    EXPECT_TRUE(std::isnan(widen(out[2])));
    EXPECT_EQ(widen(out[3]), -inf);
    cpu::unary({UnaryOp::tanh, x.data(), out.data(), n, dtype_of<T>});
    EXPECT_EQ(widen(out[1]), 1.0);
    EXPECT_EQ(widen(out[2]), -1.0);
  });
}

TYPED_TEST(ElementwiseTest, CutsAndThreadsChangeNoBit) {
  using T = TypeParam;
  constexpr std::int64_t n = 300;
  for_each_target([&] {
    for (const UnaryOp op : all_ops) {
      const auto x = inputs_for<T>(op, n, 5);
      const auto dout = normals<T>(n, 6);
      expect_cut_invariant<T>(n, [&](std::int64_t first, std::int64_t last, T* out) {
        cpu::unary({op, x.data() + first, out + first, last - first, dtype_of<T>});
      });
      expect_cut_invariant<T>(n, [&](std::int64_t first, std::int64_t last, T* out) {
        cpu::unary_backward(
            {op, dout.data() + first, x.data() + first, out + first, last - first, dtype_of<T>});
      });
    }
  });
  constexpr std::int64_t large = 100'003;
  const auto x = normals<T>(large, 7);
  expect_thread_invariant([&] {
    std::vector<T> out(x.size());
    cpu::unary({UnaryOp::gelu_tanh, x.data(), out.data(), large, dtype_of<T>});
    return out;
  });
}

TYPED_TEST(ElementwiseTest, BinaryMatchesReference) {
  using T = TypeParam;
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {
      {1, 1}, {1, 33}, {1, 1021}, {7, 1}, {1000, 1}, {31, 3}, {1021, 7}, {33, 255}, {5, 1000}};
  for_each_target([&] {
    for (const auto& [outer, inner] : sizes) {
      auto a = normals<T>(outer * inner, 8);
      const auto b = normals<T>(inner, 9);
      for (const BinaryOp op :
           {BinaryOp::add, BinaryOp::subtract, BinaryOp::multiply, BinaryOp::divide}) {
        std::vector<double> reference(a.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
          const double x = widen(a[i]);
          const double y = widen(b[i % static_cast<std::size_t>(inner)]);
          reference[i] = op == BinaryOp::add        ? x + y
                         : op == BinaryOp::subtract ? x - y
                         : op == BinaryOp::multiply ? x * y
                                                    : x / y;
        }
        std::vector<T> out(a.size());
        cpu::binary({op, a.data(), b.data(), out.data(), outer, inner, dtype_of<T>});
        expect_close(out, reference, 1);
        auto over_a = a;
        cpu::binary({op, over_a.data(), b.data(), over_a.data(), outer, inner, dtype_of<T>});
        expect_same_bits(over_a, out, "in place of a");
        if (outer == 1) {
          auto over_b = b;
          cpu::binary({op, a.data(), over_b.data(), over_b.data(), outer, inner, dtype_of<T>});
          expect_same_bits(over_b, out, "in place of b");
        }
      }
    }
  });
}

TYPED_TEST(ElementwiseTest, AffineMatchesReference) {
  using T = TypeParam;
  for_each_target([&] {
    for (const std::int64_t n : odd_sizes) {
      auto x = normals<T>(n, 10);
      std::vector<double> reference(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) reference[i] = widen(x[i]) * 1.5 - 0.25;
      cpu::affine({x.data(), x.data(), n, dtype_of<T>, 1.5, -0.25});
      expect_close(x, reference, 2, 1.0);
    }
  });
}

template <class T>
void expect_filled(double value, T expected) {
  for (const std::int64_t n : odd_sizes) {
    std::vector<T> out(static_cast<std::size_t>(n) + 1);
    std::memset(out.data(), 0x5a, out.size() * sizeof(T));
    const T guard = out.back();
    cpu::fill({out.data(), n, dtype_of<T>, value});
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::memcmp(&out[static_cast<std::size_t>(i)], &expected, sizeof(T)), 0);
    }
    EXPECT_EQ(std::memcmp(&out.back(), &guard, sizeof(T)), 0) << "wrote past the end";
  }
}

TEST(Fill, EveryDtype) {
  expect_filled<float>(1.25, 1.25f);
  expect_filled<float>(0.0, 0.0f);
  expect_filled<double>(-0.1, -0.1);
  expect_filled<BFloat16>(3.0, BFloat16{0x4040});
  expect_filled<Float16>(1.0, Float16{0x3c00});
  expect_filled<std::int32_t>(-7, -7);
  expect_filled<std::int64_t>(1e15, 1'000'000'000'000'000);
  expect_filled<std::uint8_t>(200, 200);
  std::vector<std::uint8_t> flags(9, 9);
  cpu::fill({flags.data(), 9, boolean, 5.0});
  EXPECT_EQ(flags, std::vector<std::uint8_t>(9, 1));
}

TEST(Fill, RoundsOnce) {
  // 1 + 2^-8 is bf16's tie between 1 and 1 + 2^-7; a slightly larger value must round up although
  // float drops the difference.
  std::vector<BFloat16> out(1);
  cpu::fill({out.data(), 1, bfloat16, 1.0 + 0x1p-8 + 0x1p-40});
  EXPECT_EQ(out[0].bits, 0x3f81);
}

TEST(Elementwise, RefusesIntegers) {
  std::vector<std::int32_t> x(4);
  EXPECT_THROW(cpu::unary({UnaryOp::relu, x.data(), x.data(), 4, int32}), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels::testing
