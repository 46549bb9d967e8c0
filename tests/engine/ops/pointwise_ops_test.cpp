// Broadcasting, pointwise functions, comparisons and masks against the standard library's
// functions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "engine/ops/tensor_of.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;
constexpr double infinite = std::numeric_limits<double>::infinity();
const double not_a_number = std::nan("");

Tensor normals(const Shape& shape, unsigned seed, DType dtype = float32) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Doubles values(static_cast<std::size_t>(shape.elements()));
  for (double& value : values) value = normal(generator);
  return cast(Tensor::from(values, shape), dtype);
}

// Half a unit in the last place, relative.
double rounding_of(DType dtype) {
  if (dtype == float64) return 0x1p-53;
  if (dtype == float32) return 0x1p-24;
  return dtype == bfloat16 ? 0x1p-8 : 0x1p-11;
}

void expect_near(const Tensor& got, const Doubles& wanted, const char* what) {
  const Doubles values = got.to_vector();
  ASSERT_EQ(values.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(wanted[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << what << " " << i;
    } else if (std::isinf(wanted[i])) {
      EXPECT_EQ(values[i], wanted[i]) << what << " " << i;
    } else {
      // One rounding, and a few units of the arithmetic, which is fp32 at least.
      const double arithmetic = got.dtype() == float64 ? 0x1p-50 : 0x1p-21;
      const double subnormal = got.dtype() == float16 ? 0x1p-25 : 0;
      const double bound = subnormal + rounding_of(got.dtype()) * std::abs(wanted[i]) +
                           arithmetic * std::max(1e-6, std::abs(wanted[i]));
      EXPECT_NEAR(values[i], wanted[i], bound) << what << " " << i;
    }
  }
}

TEST(PointwiseOps, BroadcastAsNumPy) {
  const Tensor a = normals({4, 1, 3}, 1), b = normals({2, 1}, 2);
  const Doubles x = a.to_vector(), y = b.to_vector();
  Doubles sums, products;
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < 2; ++j) {
      for (std::size_t k = 0; k < 3; ++k) {
        sums.push_back(x[i * 3 + k] + y[j]);
        products.push_back(x[i * 3 + k] * y[j]);
      }
    }
  }
  EXPECT_EQ((a + b).shape(), (Shape{4, 2, 3}));
  expect_near(a + b, sums, "add");
  expect_near(b + a, sums, "add");
  expect_near(a * b, products, "multiply");
  EXPECT_EQ((normals({3}, 1) + normals({0, 3}, 2)).shape(), (Shape{0, 3}));
  EXPECT_EQ((normals({1, 1}, 1) + normals({3}, 2)).shape(), (Shape{1, 3}));
}

TEST(PointwiseOps, FunctionsInEveryDtype) {
  struct Case {
    const char* name;
    std::function<Tensor(const Tensor&)> op;
    double (*exact)(double);
  };
  const Case cases[] = {
      {"abs", [](const Tensor& x) { return abs(x); }, [](double v) { return std::abs(v); }},
      {"reciprocal", [](const Tensor& x) { return reciprocal(x); }, [](double v) { return 1 / v; }},
      {"rsqrt", [](const Tensor& x) { return rsqrt(abs(x)); },
       [](double v) { return 1 / std::sqrt(std::abs(v)); }},
      {"sin", [](const Tensor& x) { return sin(x); }, [](double v) { return std::sin(v); }},
      {"cos", [](const Tensor& x) { return cos(x); }, [](double v) { return std::cos(v); }},
      {"softplus", [](const Tensor& x) { return softplus(x * 4.0, 1, 50); },
       [](double v) { return std::log1p(std::exp(4 * v)); }},
      {"clamp", [](const Tensor& x) { return clamp(x, -0.5, 0.75); },
       [](double v) { return std::min(std::max(v, -0.5), 0.75); }},
      {"pow", [](const Tensor& x) { return pow(x, 3); }, [](double v) { return v * v * v; }},
      {"sign", [](const Tensor& x) { return sign(x); },
       [](double v) { return v > 0 ? 1.0 : (v < 0 ? -1.0 : 0.0); }},
  };
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    // More elements than the kernel processes in one piece.
    const Tensor x = normals({3, 701}, 3, dtype);
    for (const Case& one : cases) {
      Doubles wanted = x.to_vector();
      for (double& value : wanted) value = one.exact(value);
      expect_near(one.op(x), wanted, one.name);
    }
  }
}

TEST(PointwiseOps, SpecialValues) {
  const Tensor x = Tensor::from({not_a_number, infinite, -infinite, 0.0, 2.0}, {5});
  const Tensor y = Tensor::from({1.0, not_a_number, 1.0, 1.0, 1.0}, {5});
  expect_near(maximum(x, y), {not_a_number, not_a_number, 1, 1, 2}, "maximum");
  expect_near(minimum(x, y), {not_a_number, not_a_number, -infinite, 0, 1}, "minimum");
  expect_near(clamp(x, -1, 1), {not_a_number, 1, -1, 0, 1}, "clamp");
  expect_near(softplus(x), {not_a_number, infinite, 0, std::log(2.0), std::log1p(std::exp(2.0))},
              "softplus");
  expect_near(sign(x), {not_a_number, 1, -1, 0, 1}, "sign");
  EXPECT_EQ(less(x, y).to_vector(), (Doubles{0, 0, 1, 1, 0}));
  EXPECT_EQ(not_equal(x, x).to_vector(), (Doubles{1, 0, 0, 0, 0}));
  // Far arguments, where a short reduction of the angle would be wrong, and large powers.
  const Tensor far = Tensor::from({123456.f, -98765.f}, {2});
  expect_near(sin(far), {std::sin(123456.0), std::sin(-98765.0)}, "sin");
  expect_near(pow(Tensor::from({10.f, 2.f}, {2}), Tensor::from({30.f, -20.f}, {2})),
              {1e30, std::pow(2.0, -20)}, "pow");
}

TEST(PointwiseOps, ComparisonsOfEveryDtypeAndWithNumbers) {
  for (const DType dtype : {float32, bfloat16, float16, float64, int32, int64, uint8}) {
    const Tensor x = testing::tensor_of({1, 2, 3, 2}, {2, 2}, dtype);
    const Tensor row = testing::tensor_of({2, 2}, {2}, dtype);
    EXPECT_EQ(less(x, row).dtype(), boolean);
    EXPECT_EQ(less(x, row).to_vector(), (Doubles{1, 0, 0, 0}));
    EXPECT_EQ(less_equal(x, row).to_vector(), (Doubles{1, 1, 0, 1}));
    EXPECT_EQ(greater(x, 2).to_vector(), (Doubles{0, 0, 1, 0}));
    EXPECT_EQ(greater_equal(x, 2).to_vector(), (Doubles{0, 1, 1, 1}));
    EXPECT_EQ(equal(x, row).to_vector(), (Doubles{0, 1, 0, 1}));
    EXPECT_EQ(not_equal(x, 2).to_vector(), (Doubles{1, 0, 1, 0}));
  }
  const std::int64_t large = (std::int64_t{1} << 60) + 1;  // no double holds it
  const Tensor ids = Tensor::from({large, large - 1}, {2});
  EXPECT_EQ(equal(ids, Tensor::from({large}, {1})).to_vector(), (Doubles{1, 0}));
}

TEST(PointwiseOps, IntegersCompareWithAnyNumber) {
  const Tensor integers[] = {Tensor::from(std::vector<std::int32_t>{0, 1, 2, -100}, {4}),
                             Tensor::from(std::vector<std::int64_t>{0, 1, 2, -100}, {4}),
                             Tensor::from(std::vector<std::uint8_t>{0, 1, 2, 255}, {4})};
  for (const Tensor& x : integers) {
    for (const double y : {-infinite, -1e30, -0x1p63, -1.5, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 255.5,
                           0x1p63, 1e30, infinite, not_a_number}) {
      const std::vector<double> values = x.to_vector();
      const auto expected = [&](auto compare) {
        Doubles all;
        for (const double value : values) all.push_back(compare(value, y) ? 1 : 0);
        return all;
      };
      SCOPED_TRACE(y);
      EXPECT_EQ(equal(x, y).to_vector(), expected(std::equal_to<>()));
      EXPECT_EQ(not_equal(x, y).to_vector(), expected(std::not_equal_to<>()));
      EXPECT_EQ(less(x, y).to_vector(), expected(std::less<>()));
      EXPECT_EQ(less_equal(x, y).to_vector(), expected(std::less_equal<>()));
      EXPECT_EQ(greater(x, y).to_vector(), expected(std::greater<>()));
      EXPECT_EQ(greater_equal(x, y).to_vector(), expected(std::greater_equal<>()));
    }
  }
}

TEST(PointwiseOps, Masks) {
  const Tensor x = Tensor::from({1.f, -2.f, 3.f, -4.f}, {2, 2});
  const Tensor mask = greater(x, 0);
  EXPECT_EQ(logical_not(mask).to_vector(), (Doubles{0, 1, 0, 1}));
  EXPECT_EQ(logical_and(mask, less(x, 2)).to_vector(), (Doubles{1, 0, 0, 0}));
  EXPECT_EQ(logical_or(Tensor::from({std::uint8_t{0}, std::uint8_t{7}}, {2}), mask).to_vector(),
            (Doubles{1, 1, 1, 1}));
  EXPECT_EQ(where(mask, x, Tensor::scalar(9)).to_vector(), (Doubles{1, 9, 3, 9}));
  EXPECT_EQ(masked_fill(x, Tensor::from({std::uint8_t{0}, std::uint8_t{1}}, {2}), -1).to_vector(),
            (Doubles{1, -1, 3, -1}));
  const Tensor ids = Tensor::from({std::int64_t{1} << 60, std::int64_t{5}}, {2});
  const Tensor chosen = where(equal(ids, 5), Tensor::from({std::int64_t{0}}, {1}), ids);
  EXPECT_EQ(chosen.dtype(), int64);
  EXPECT_EQ(chosen.data_as<std::int64_t>()[0], std::int64_t{1} << 60);
}

TEST(PointwiseOps, DoNotDependOnThreads) {
  const Tensor a = normals({300, 1, 211}, 4), b = normals({3, 1}, 5);
  const auto run = [&](int threads) {
    const int before = compute_threads();
    set_compute_threads(threads);
    const Doubles values = (softplus(a * b) - b).to_vector();
    set_compute_threads(before);
    return values;
  };
  EXPECT_EQ(run(1), run(3));
}

TEST(PointwiseOps, RefusalsNameTheOpTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 3});
  const auto refused = [](auto&& call) { return testing::misuse_of(call); };
  EXPECT_EQ(refused([&] { return maximum(x, Tensor::zeros({2})); }),
            "maximum: shapes [2, 3] and [2] do not broadcast; aligned at their ends, sizes must be "
            "equal or 1");
  EXPECT_EQ(refused([&] { return equal(x, Tensor::zeros({3}, int32)); }),
            "equal: dtypes float32 of shape [2, 3] and int32 of shape [3] differ; cast one of them "
            "with cast(tensor, dtype)");
  EXPECT_EQ(refused([&] { return where(x, x, x); }),
            "where: a mask of float32 and shape [2, 3]; it is boolean or uint8, as comparisons "
            "give it");
  EXPECT_EQ(refused([&] { return masked_fill(x, Tensor::zeros({4}, uint8), 0); }),
            "masked_fill: a mask of shape [4] does not broadcast to [2, 3]");
  EXPECT_EQ(refused([&] { return softplus(x, 0); }), "softplus: beta is 0; it must be positive");
  EXPECT_NE(
      refused([&] { return sin(Tensor::zeros({3}, int32)); }).find("sin computes with floating"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera
