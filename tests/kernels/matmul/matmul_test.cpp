// Matrix products compared with sums in double precision: every type, flag and stride, odd sizes,
// and the same bits for any number of rows, batches or threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/registry.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/support/reference.h"

namespace tessera::kernels {
namespace {

// Values in the storage form of a type.
class Array {
 public:
  Array(DType dtype, std::int64_t count)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(count) * size_of(dtype)) {}

  static Array random(DType dtype, std::int64_t count, unsigned seed) {
    Array array(dtype, count);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) array.set(i, normal(generator));
    return array;
  }

  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::float64:
        return put(i, value);
      case DType::float32:
        return put(i, static_cast<float>(value));
      case DType::bfloat16:
        return put(i, to_bfloat16(static_cast<float>(value)));
      default:
        return put(i, to_float16(static_cast<float>(value)));
    }
  }

  [[nodiscard]] double at(std::int64_t i) const {
    switch (dtype_) {
      case DType::float64:
        return take<double>(i);
      case DType::float32:
        return take<float>(i);
      case DType::bfloat16:
        return to_float(take<BFloat16>(i));
      default:
        return to_float(take<Float16>(i));
    }
  }

  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> values(bytes_.size() / size_of(dtype_));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = at(static_cast<std::int64_t>(i));
    return values;
  }

  [[nodiscard]] void* data() { return bytes_.data(); }
  [[nodiscard]] const void* data() const { return bytes_.data(); }
  bool operator==(const Array&) const = default;

 private:
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  [[nodiscard]] T take(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }

  DType dtype_;
  std::vector<char> bytes_;
};

struct ProductCase {
  std::int64_t m, n, k;
  DType dtype = float32, out_dtype = float32;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  float alpha = 1.0f;
  std::int64_t batch = 1, padding = 0;

  [[nodiscard]] std::string text() const {
    return fmt::format("{}x{}x{} {}->{} ta{} tb{} acc{} bias{} alpha{} batch{} pad{}", m, n, k,
                       name_of(dtype), name_of(out_dtype), transpose_a, transpose_b, accumulate,
                       bias, alpha, batch, padding);
  }
};

// The operands of a case, and the call.
struct Product {
  explicit Product(const ProductCase& c)
      : shape(c),
        a(Array::random(c.dtype, c.batch * stride_a(), 1)),
        b(Array::random(c.dtype, c.batch * stride_b(), 2)),
        before(Array::random(c.out_dtype, c.batch * stride_c(), 3)),
        bias(Array::random(c.dtype, c.n, 4)),
        out(before) {}

  [[nodiscard]] std::int64_t lda() const {
    return (shape.transpose_a ? shape.m : shape.k) + shape.padding;
  }
  [[nodiscard]] std::int64_t ldb() const {
    return (shape.transpose_b ? shape.k : shape.n) + shape.padding;
  }
  [[nodiscard]] std::int64_t ldc() const { return shape.n + shape.padding; }
  [[nodiscard]] std::int64_t stride_a() const {
    return (shape.transpose_a ? shape.k : shape.m) * lda();
  }
  [[nodiscard]] std::int64_t stride_b() const {
    return (shape.transpose_b ? shape.n : shape.k) * ldb();
  }
  [[nodiscard]] std::int64_t stride_c() const { return shape.m * ldc(); }

  Matmul arguments() {
    return {.a = a.data(),
            .b = b.data(),
            .c = out.data(),
            .m = shape.m,
            .n = shape.n,
            .k = shape.k,
            .lda = lda(),
            .ldb = ldb(),
            .ldc = ldc(),
            .transpose_a = shape.transpose_a,
            .transpose_b = shape.transpose_b,
            .accumulate = shape.accumulate,
            .alpha = shape.alpha,
            .bias = shape.bias ? bias.data() : nullptr,
            .dtype = shape.dtype,
            .out_dtype = shape.out_dtype,
            .batch = shape.batch,
            .stride_a = stride_a(),
            .stride_b = stride_b(),
            .stride_c = stride_c()};
  }

  ProductCase shape;
  Array a, b, before, bias, out;
};

// A matrix of a batch, transposed if the product uses it transposed.
reference::Matrix matrix(const std::vector<double>& values, std::int64_t first, std::int64_t rows,
                         std::int64_t columns, std::int64_t stride, bool transposed) {
  if (transposed) return {values.data() + first, rows, columns, 1, stride};
  return {values.data() + first, rows, columns, stride};
}

// The error of a sum of k products in fp32 (fp64) is a few roundings of the sum of magnitudes. A
// 16-bit result is then rounded once, which allows twice the error of rounding the exact result.
void expect_right_product(const ProductCase& c) {
  SCOPED_TRACE(c.text());
  Product problem(c);
  cpu::matmul(problem.arguments());
  const double sum_rounding = c.dtype == float64 ? 0x1p-53 : 0x1p-24;
  const std::vector<double> a = problem.a.values(), b = problem.b.values();
  for (std::int64_t s = 0; s < c.batch; ++s) {
    const auto exact = reference::product(
        matrix(a, s * problem.stride_a(), c.m, c.k, problem.lda(), c.transpose_a),
        matrix(b, s * problem.stride_b(), c.k, c.n, problem.ldb(), c.transpose_b));
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < problem.ldc(); ++j) {
        const std::int64_t at = s * problem.stride_c() + i * problem.ldc() + j;
        if (j >= c.n) {
          ASSERT_EQ(problem.out.at(at), problem.before.at(at)) << "wrote between rows";
          continue;
        }
        const auto element = static_cast<std::size_t>(i * c.n + j);
        double reference = exact.sum[element] * c.alpha;
        if (c.accumulate) reference += problem.before.at(at);
        if (c.bias) reference += problem.bias.at(j);
        const double allowed = 2 * testing::half_ulp(c.out_dtype) * std::abs(reference) +
                               sum_rounding * (4 + std::sqrt(static_cast<double>(c.k)) * 2) *
                                   (exact.magnitude[element] * std::abs(c.alpha) + 4);
        ASSERT_NEAR(problem.out.at(at), reference, allowed) << "row " << i << " column " << j;
      }
    }
  }
}

struct Types {
  DType in, out;
};
const std::vector<Types> kTypes{{float32, float32}, {bfloat16, bfloat16}, {bfloat16, float32},
                                {float16, float16}, {float16, float32},   {float64, float64}};

// One thread unless a test says otherwise: on a busy machine two threads that wait for each other
// are slow.
class MatmulTest : public ::testing::Test {
 protected:
  void SetUp() override { set_compute_threads(1); }
};

TEST_F(MatmulTest, EveryTypeFlagAndOddSize) {
  const std::int64_t sizes[][3] = {{1, 1, 1},   {1, 33, 17},   {17, 1, 33},  {33, 17, 1},
                                   {3, 17, 33}, {17, 33, 127}, {127, 3, 17}, {33, 127, 3}};
  for (const auto& types : kTypes) {
    for (const auto& [m, n, k] : sizes) {
      for (int flags = 0; flags < 16; ++flags) {
        expect_right_product({.m = m,
                              .n = n,
                              .k = k,
                              .dtype = types.in,
                              .out_dtype = types.out,
                              .transpose_a = (flags & 1) != 0,
                              .transpose_b = (flags & 2) != 0,
                              .accumulate = (flags & 4) != 0,
                              .bias = (flags & 8) != 0});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(MatmulTest, AlphaAppliesOnlyToTheProduct) {
  for (const auto& types : kTypes) {
    for (int flags = 0; flags < 4; ++flags) {
      expect_right_product({.m = 20,
                            .n = 19,
                            .k = 40,
                            .dtype = types.in,
                            .out_dtype = types.out,
                            .accumulate = (flags & 1) != 0,
                            .bias = (flags & 2) != 0,
                            .alpha = 0.375f});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(MatmulTest, StridesAndBatches) {
  for (const auto& types : kTypes) {
    for (int flags = 0; flags < 4; ++flags) {
      expect_right_product({.m = 18,
                            .n = 35,
                            .k = 21,
                            .dtype = types.in,
                            .out_dtype = types.out,
                            .transpose_a = (flags & 1) != 0,
                            .transpose_b = (flags & 2) != 0,
                            .batch = 5,
                            .padding = 9});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(MatmulTest, SumsInSeveralChunks) {
  for (const DType out_dtype : {bfloat16, float32}) {
    for (const bool plain : {false, true}) {
      expect_right_product({.m = 150,
                            .n = 70,
                            .k = 1130,
                            .dtype = bfloat16,
                            .out_dtype = out_dtype,
                            .transpose_b = plain,
                            .accumulate = true,
                            .bias = !plain});
    }
  }
}

TEST_F(MatmulTest, LargerThanTheWidenedBlocks) {
  for (const DType dtype : {bfloat16, float16}) {
    expect_right_product(
        {.m = 300, .n = 530, .k = 6, .dtype = dtype, .out_dtype = dtype, .bias = true});
    expect_right_product(
        {.m = 270, .n = 5, .k = 4100, .dtype = dtype, .out_dtype = float32, .transpose_a = true});
  }
}

TEST_F(MatmulTest, ZeroDepthLeavesBiasAndTheOldValues) {
  for (const auto& types : kTypes) {
    for (int flags = 0; flags < 4; ++flags) {
      expect_right_product({.m = 3,
                            .n = 5,
                            .k = 0,
                            .dtype = types.in,
                            .out_dtype = types.out,
                            .accumulate = (flags & 1) != 0,
                            .bias = (flags & 2) != 0});
    }
  }
  Product empty({.m = 0, .n = 5, .k = 2});
  cpu::matmul(empty.arguments());
}

TEST_F(MatmulTest, RowsDoNotDependOnTheNumberOfRows) {
  for (const auto& types : kTypes) {
    for (const bool transpose_b : {false, true}) {
      for (const auto& [n, k] : std::vector<std::array<std::int64_t, 2>>{
               {1, 97}, {5, 33}, {5, 97}, {64, 64}, {64, 97}, {200, 97}, {384, 256}}) {
        Product whole({.m = 140,
                       .n = n,
                       .k = 97,
                       .dtype = types.in,
                       .out_dtype = types.out,
                       .transpose_b = transpose_b});
        cpu::matmul(whole.arguments());
        for (const std::int64_t rows :
             {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 128, 139}) {
          Product part = whole;
          part.shape.m = rows;
          part.out = Array(types.out, 140 * n);
          cpu::matmul(part.arguments());
          ASSERT_EQ(std::memcmp(part.out.data(), whole.out.data(),
                                static_cast<std::size_t>(rows * n) * size_of(types.out)),
                    0)
              << rows << " rows, " << whole.shape.text();
        }
      }
    }
  }
}

TEST_F(MatmulTest, ThreadsDoNotChangeABit) {
  for (const auto& types : kTypes) {
    for (const auto& [m, n, k, batch] : std::vector<std::array<std::int64_t, 4>>{{128, 384, 200, 1},
                                                                                 {3, 1000, 50, 1},
                                                                                 {40, 1, 1000, 1},
                                                                                 {1, 1, 1000, 1},
                                                                                 {64, 64, 3000, 1},
                                                                                 {20, 20, 20, 9}}) {
      for (const bool transpose_a : {false, true}) {
        Product problem({.m = m,
                         .n = n,
                         .k = k,
                         .dtype = types.in,
                         .out_dtype = types.out,
                         .transpose_a = transpose_a,
                         .batch = batch});
        set_compute_threads(1);
        cpu::matmul(problem.arguments());
        const Array one = problem.out;
        problem.out = problem.before;
        set_compute_threads(2);
        cpu::matmul(problem.arguments());
        EXPECT_EQ(problem.out, one) << problem.shape.text();
      }
    }
  }
}

TEST_F(MatmulTest, MisuseNamesTheShape) {
  Product problem({.m = 4, .n = 5, .k = 6});
  Matmul wrong = problem.arguments();
  wrong.ldb = 4;
  try {
    cpu::matmul(wrong);
    FAIL() << "accepted overlapping rows";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("m 4, n 5, k 6"), std::string::npos) << error.what();
  }
  wrong = problem.arguments();
  wrong.out_dtype = bfloat16;
  EXPECT_THROW(cpu::matmul(wrong), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels
