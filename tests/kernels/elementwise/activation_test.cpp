// Bias with GELU, and SwiGLU, compared with fp64 and with a plain low-precision implementation.
#include "kernels/activation.h"

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

struct ActivationShape {
  std::int64_t rows, dim;
};
const std::vector<ActivationShape> activation_shapes = {
    {1, 1}, {7, 31}, {33, 7}, {3, 1000}, {2, 1021}};

double gelu(double x, bool exact) {
  if (exact) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x, bool exact) {  // by central differences of a smooth function in fp64
  const double h = 1e-4;
  return (8.0 * (gelu(x + h, exact) - gelu(x - h, exact)) -
          (gelu(x + 2 * h, exact) - gelu(x - 2 * h, exact))) /
         (12.0 * h);
}

template <class T>
class ActivationTest : public ::testing::Test {};
TYPED_TEST_SUITE(ActivationTest, FloatingTypes);

// The accuracy of central differences.
template <class T>
constexpr double slope_ulps = std::is_same_v<T, double> ? 1e5 : 12.0;

TYPED_TEST(ActivationTest, BiasGeluMatchesReference) {
  using T = TypeParam;
  for_each_target([&] {
    for (const auto& [rows, dim] : activation_shapes) {
      const std::int64_t n = rows * dim;
      const auto x = normals<T>(n, 1, 2.0);
      const auto bias = normals<T>(dim, 2);
      const auto dout = normals<T>(n, 3);
      for (const bool exact : {false, true}) {
        for (const bool with_bias : {false, true}) {
          std::vector<double> reference(x.size()), gradient(x.size());
          for (std::size_t i = 0; i < x.size(); ++i) {
            const double b = with_bias ? widen(bias[i % static_cast<std::size_t>(dim)]) : 0.0;
            reference[i] = gelu(widen(x[i]) + b, exact);
            gradient[i] = widen(dout[i]) * gelu_slope(widen(x[i]) + b, exact);
          }
          const void* bias_pointer = with_bias ? bias.data() : nullptr;
          auto out = x;  // in place
          cpu::bias_gelu({out.data(), bias_pointer, out.data(), rows, dim, exact, dtype_of<T>});
          expect_close(out, reference, 12, 1.0);
          auto dx = dout;
          auto again = x;
          cpu::bias_gelu_backward({dx.data(), again.data(), bias_pointer, dx.data(), again.data(),
                                   rows, dim, exact, dtype_of<T>});
          expect_close(dx, gradient, slope_ulps<T>, 4.0);
          expect_same_bits(again, out, "recomputed output");
          std::vector<T> alone(x.size());
          cpu::bias_gelu_backward({dout.data(), x.data(), bias_pointer, alone.data(), nullptr, rows,
                                   dim, exact, dtype_of<T>});
          expect_same_bits(alone, dx, "without the recomputed output");
        }
      }
    }
  });
}

TYPED_TEST(ActivationTest, SwiGluMatchesReference) {
  using T = TypeParam;
  for_each_target([&] {
    for (const auto& [rows, dim] : activation_shapes) {
      const std::int64_t stride = 2 * dim;  // packed: gate, then up
      const auto packed = normals<T>(rows * stride, 4, 2.0);
      const auto dout = normals<T>(rows * dim, 5);
      std::vector<double> reference(dout.size()), gradient(packed.size());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < dim; ++i) {
          const auto g_at = static_cast<std::size_t>(r * stride + i);
          const auto u_at = static_cast<std::size_t>(r * stride + dim + i);
          const auto o_at = static_cast<std::size_t>(r * dim + i);
          const double g = widen(packed[g_at]), u = widen(packed[u_at]), d = widen(dout[o_at]);
          const double s = 1.0 / (1.0 + std::exp(-g));
          reference[o_at] = g * s * u;
          gradient[g_at] = d * u * s * (1.0 + g * (1.0 - s));
          gradient[u_at] = d * g * s;
        }
      }
      const T* gate = packed.data();
      const T* up = packed.data() + dim;
      std::vector<T> out(dout.size()), again(dout.size()), dpacked(packed.size());
      cpu::swiglu({gate, up, out.data(), rows, dim, stride, stride, dtype_of<T>});
      expect_close(out, reference, 12);
      cpu::swiglu_backward({dout.data(), gate, up, dpacked.data(), dpacked.data() + dim,
                            again.data(), rows, dim, stride, stride, dtype_of<T>});
      expect_close(dpacked, gradient, 16, 4.0);
      expect_same_bits(again, out, "recomputed output");
    }
  });
}

TYPED_TEST(ActivationTest, CutsAndThreadsChangeNoBit) {
  using T = TypeParam;
  constexpr std::int64_t n = 300;
  const auto x = normals<T>(n, 6);
  const auto bias = normals<T>(n, 7);
  const auto dout = normals<T>(n, 8);
  for_each_target([&] {
    for (const bool exact : {false, true}) {
      expect_cut_invariant<T>(n, [&](std::int64_t first, std::int64_t last, T* out) {
        cpu::bias_gelu({x.data() + first, bias.data() + first, out + first, 1, last - first, exact,
                        dtype_of<T>});
      });
      expect_cut_invariant<T>(n, [&](std::int64_t first, std::int64_t last, T* out) {
        cpu::bias_gelu_backward({dout.data() + first, x.data() + first, bias.data() + first,
                                 out + first, nullptr, 1, last - first, exact, dtype_of<T>});
      });
    }
  });
  constexpr std::int64_t rows = 131, dim = 513;
  const auto large = normals<T>(rows * dim, 9);
  const auto large_bias = normals<T>(dim, 10);
  expect_thread_invariant([&] {
    std::vector<T> out(large.size());
    cpu::bias_gelu({large.data(), large_bias.data(), out.data(), rows, dim, false, dtype_of<T>});
    return out;
  });
}

// Every step is rounded to T, as in a framework without fusion.
template <class T>
double plain_gelu(double x) {
  const auto round = [](double value) { return widen(narrow<T>(value)); };
  const double cube = round(round(x * x) * x);
  const double inner = round(x + round(0.044715 * cube));
  const double t = round(std::tanh(round(0.7978845608 * inner)));
  return round(round(0.5 * x) * round(1.0 + t));
}

template <class T>
void expect_no_worse_than_plain() {
  const auto x = normals<T>(4096, 11, 2.0);
  std::vector<double> reference(x.size()), plain(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    reference[i] = gelu(widen(x[i]), false);
    plain[i] = plain_gelu<T>(widen(x[i]));
  }
  std::vector<T> out(x.size());
  cpu::bias_gelu({x.data(), nullptr, out.data(), 1, 4096, false, dtype_of<T>});
  EXPECT_LE(largest_error(doubles(out), reference), 2.0 * largest_error(plain, reference));
}

TEST(Activation, LowPrecisionIsNoWorseThanPlain) {
  expect_no_worse_than_plain<BFloat16>();
  expect_no_worse_than_plain<Float16>();
}

}  // namespace
}  // namespace tessera::kernels::testing
