// Products of a few rows with a matrix compared with sums in fp64; neither threads nor other rows
// change bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::normals;
using testing::widen;

struct GemvCase {
  std::int64_t rows, n, k;
  bool transposed, bias;
};

template <class T>
struct GemvOperands {
  explicit GemvOperands(const GemvCase& s)
      : x(normals<T>(s.rows * s.k, 1)), w(normals<T>(s.n * s.k, 2)), bias(normals<T>(s.n, 3)) {}
  std::vector<T> x, w, bias;
};

template <class T>
std::vector<T> gemv_of(const GemvCase& s, const GemvOperands<T>& operands) {
  std::vector<T> out(static_cast<std::size_t>(s.rows * s.n));
  cpu::gemv({.x = operands.x.data(),
             .w = operands.w.data(),
             .bias = s.bias ? operands.bias.data() : nullptr,
             .out = out.data(),
             .rows = s.rows,
             .n = s.n,
             .k = s.k,
             .transposed = s.transposed,
             .dtype = dtype_of<T>});
  return out;
}

template <class T>
void check_gemv(const GemvCase& s) {
  const GemvOperands<T> operands(s);
  const auto at = [](const std::vector<T>& values, std::int64_t i) {
    return static_cast<double>(widen(values[static_cast<std::size_t>(i)]));
  };
  std::vector<double> reference;
  for (std::int64_t row = 0; row < s.rows; ++row) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = s.bias ? at(operands.bias, j) : 0;
      for (std::int64_t i = 0; i < s.k; ++i) {
        sum += at(operands.x, row * s.k + i) *
               at(operands.w, s.transposed ? j * s.k + i : i * s.n + j);
      }
      reference.push_back(sum);
    }
  }
  const auto terms = static_cast<double>(s.k + 1);
  testing::expect_close(gemv_of(s, operands), reference, terms, 3 * std::sqrt(terms));
}

template <class T>
class GemvOf : public ::testing::Test {};
TYPED_TEST_SUITE(GemvOf, testing::FloatingTypes);

TYPED_TEST(GemvOf, SumsOfEveryShape) {
  testing::for_each_target([&] {
    for (const bool transposed : {false, true}) {
      check_gemv<TypeParam>({1, 96, 64, transposed, true});
      check_gemv<TypeParam>({3, 70, 33, transposed, true});
      check_gemv<TypeParam>({1, 4500, 20, transposed, false});
      check_gemv<TypeParam>({2, 130, 1, transposed, true});
      check_gemv<TypeParam>({1, 1, 200, transposed, true});
      check_gemv<TypeParam>({2, 9, 0, transposed, true});
      check_gemv<TypeParam>({2, 9, 0, transposed, false});
      check_gemv<TypeParam>({0, 9, 5, transposed, true});
      check_gemv<TypeParam>({2, 0, 5, transposed, true});
    }
  });
}

TYPED_TEST(GemvOf, NeitherThreadsNorOtherRowsChangeABit) {
  for (const bool transposed : {false, true}) {
    const GemvCase three{3, 1500, 300, transposed, true};
    const GemvOperands<TypeParam> operands(three);
    testing::expect_thread_invariant([&] { return gemv_of(three, operands); });
    std::vector<TypeParam> first = gemv_of(three, operands);
    first.resize(static_cast<std::size_t>(three.n));
    testing::expect_same_bits(first, gemv_of({1, 1500, 300, transposed, true}, operands),
                              "a row alone");
  }
}

TEST(GemvArguments, OtherTypesAndNegativeSizesAreRefused) {
  kernels::Gemv wrong{};
  wrong.dtype = DType::int32;
  EXPECT_THROW(cpu::gemv(wrong), std::logic_error);
  wrong.dtype = DType::float32;
  wrong.k = -1;
  EXPECT_THROW(cpu::gemv(wrong), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels
