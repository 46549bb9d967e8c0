// Matrix products on a GPU compared with the CPU's: every type, flag, stride and edge, with every
// implementation on this machine (the own kernels; cuBLASLt where it is installed).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernel_testing.h"
#include "kernels/cuda/matmul/matmul_kernels.h"
#include "kernels/cuda/matmul/matmul_way.h"

namespace tessera::testing {
namespace {

using kernels::Matmul;
using kernels::cuda::MatmulWay;

// Numbers of multiprocessors with which the kernels choose their large tiles, or their small ones.
constexpr int few_multiprocessors = 1;
constexpr int many_multiprocessors = 1 << 20;

struct ProductCase {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false, bias = false;
  float alpha = 1;
  std::int64_t batch = 1;
  bool one_b = false;       // one matrix b for the whole batch
  std::int64_t gap = 0;     // elements between rows
  std::int64_t offset = 0;  // elements before the first, so that the matrix is unaligned
  int multiprocessors = 0;  // 0: the device's
};

std::string describe(const ProductCase& c, DType dtype, DType out_dtype) {
  return fmt::format("{}x{}x{} {}{} {} to {}{}{} alpha {} batch {} gap {} offset {} tiles {}", c.m,
                     c.n, c.k, c.transpose_a ? 'T' : 'N', c.transpose_b ? 'T' : 'N', name_of(dtype),
                     name_of(out_dtype), c.accumulate ? " accumulate" : "", c.bias ? " bias" : "",
                     c.alpha, c.batch, c.gap, c.offset, c.multiprocessors);
}

std::vector<MatmulWay> ways() {
  std::vector<MatmulWay> all{MatmulWay::own};
  if (kernels::cuda::cublas_lt_library().functions != nullptr) all.push_back(MatmulWay::cublas);
  return all;
}

// The arguments of a case, without memory.
Matmul arguments_of(const ProductCase& c, DType dtype, DType out_dtype) {
  Matmul p{};
  p.m = c.m;
  p.n = c.n;
  p.k = c.k;
  p.lda = (c.transpose_a ? c.m : c.k) + c.gap;
  p.ldb = (c.transpose_b ? c.k : c.n) + c.gap;
  p.ldc = c.n + c.gap;
  p.transpose_a = c.transpose_a;
  p.transpose_b = c.transpose_b;
  p.accumulate = c.accumulate;
  p.alpha = c.alpha;
  p.dtype = dtype;
  p.out_dtype = out_dtype;
  p.batch = c.batch;
  p.stride_a = (c.transpose_a ? c.k : c.m) * p.lda;
  p.stride_b = c.one_b ? 0 : (c.transpose_b ? c.n : c.k) * p.ldb;
  p.stride_c = c.m * p.ldc;
  return p;
}

// A matrix, as numbers that its dtype can represent. The arrays end with the last element, so that
// the address sanitizer detects reads beyond it.
struct Values {
  std::vector<double> a, b, c, bias;
};

std::size_t elements_of(std::int64_t bytes, DType dtype) {
  return static_cast<std::size_t>(bytes) / size_of(dtype);
}

Values values_of(const ProductCase& c, DType dtype, DType out_dtype) {
  Matmul p = arguments_of(c, dtype, out_dtype);
  Values values;
  values.a = random_values(elements_of(kernels::cuda::bytes_of_a(p), dtype), dtype, 1);
  values.b = random_values(elements_of(kernels::cuda::bytes_of_b(p), dtype), dtype, 2);
  values.c = random_values(elements_of(kernels::cuda::bytes_of_c(p), out_dtype), out_dtype, 3);
  if (c.bias) values.bias = random_values(static_cast<std::size_t>(c.n), dtype, 4);
  return values;
}

// c after the CPU's product, in the case's types or all in fp64.
std::vector<double> on_cpu(const ProductCase& c, const Values& values, DType dtype,
                           DType out_dtype) {
  Matmul p = arguments_of(c, dtype, out_dtype);
  const auto a = encode(values.a, dtype), b = encode(values.b, dtype),
             bias = encode(values.bias, dtype);
  auto result = encode(values.c, out_dtype);
  p.a = a.data();
  p.b = b.data();
  p.c = result.data();
  p.bias = c.bias ? bias.data() : nullptr;
  kernels::cpu::matmul(p);
  return decode(result, out_dtype);
}

// `offset` unused elements, then the values.
DeviceMemory uploaded(const std::vector<double>& values, DType dtype, std::int64_t offset) {
  std::vector<double> shifted(static_cast<std::size_t>(offset), 0.0);
  shifted.insert(shifted.end(), values.begin(), values.end());
  return {shifted, dtype};
}

std::vector<double> on_device(const ProductCase& c, const Values& values, DType dtype,
                              DType out_dtype, MatmulWay way) {
  TestContext context;
  if (c.multiprocessors != 0) context.multiprocessors = c.multiprocessors;
  Matmul p = arguments_of(c, dtype, out_dtype);
  const DeviceMemory a = uploaded(values.a, dtype, c.offset);
  const DeviceMemory b = uploaded(values.b, dtype, c.offset);
  const DeviceMemory bias = uploaded(values.bias, dtype, c.offset);
  const DeviceMemory result = uploaded(values.c, out_dtype, c.offset);
  const auto shift = static_cast<std::size_t>(c.offset);
  p.a = a.as<std::byte>() + shift * size_of(dtype);
  p.b = b.as<std::byte>() + shift * size_of(dtype);
  p.c = result.as<std::byte>() + shift * size_of(out_dtype);
  p.bias = c.bias ? bias.as<std::byte>() + shift * size_of(dtype) : nullptr;
  kernels::cuda::matmul_by(way, p, context, kernels::cuda::cublas_lt_library());
  context.synchronize();
  std::vector<double> all = result.read(out_dtype);
  for (std::int64_t i = 0; i < c.offset; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], 0.0);
  return {all.begin() + c.offset, all.end()};
}

// From the whole memory of c: the elements of the matrix, or those of the gaps.
std::vector<double> part_of(const ProductCase& c, const std::vector<double>& all, bool gaps) {
  const std::int64_t leading = c.n + c.gap;
  std::vector<double> part;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((static_cast<std::int64_t>(i) % leading >= c.n) == gaps) part.push_back(all[i]);
  }
  return part;
}

void check_product(const ProductCase& c, DType dtype, DType out_dtype) {
  const Values values = values_of(c, dtype, out_dtype);
  const std::vector<double> exact = on_cpu(c, values, float64, float64);
  const std::vector<double> low = on_cpu(c, values, dtype, out_dtype);
  for (const MatmulWay way : ways()) {
    SCOPED_TRACE(describe(c, dtype, out_dtype) + (way == MatmulWay::own ? " own" : " cuBLASLt"));
    const std::vector<double> device = on_device(c, values, dtype, out_dtype, way);
    expect_within_bound("matmul", fmt::format("c from {}", name_of(dtype)), out_dtype,
                        part_of(c, device, false), part_of(c, low, false),
                        part_of(c, exact, false));
    EXPECT_EQ(part_of(c, device, true), part_of(c, values.c, true)) << "wrote between the rows";
  }
}

void check_all_types(const ProductCase& c) {
  for (const DType dtype : floating_dtypes) check_product(c, dtype, dtype);
  for (const DType dtype : {bfloat16, float16}) check_product(c, dtype, float32);
}

template <class Body>
void for_all_transposes(const Body& body) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) body(transpose_a, transpose_b);
  }
}

TEST(CudaMatmul, MultipliesInEveryTypeAndTranspose) {
  for_all_transposes([](bool transpose_a, bool transpose_b) {
    check_all_types({.m = 70,
                     .n = 40,
                     .k = 50,
                     .transpose_a = transpose_a,
                     .transpose_b = transpose_b,
                     .multiprocessors = many_multiprocessors});
  });
}

TEST(CudaMatmul, MultipliesInLargeTiles) {
  for_all_transposes([](bool transpose_a, bool transpose_b) {
    const ProductCase c{.m = 136,
                        .n = 72,
                        .k = 40,
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .bias = true,
                        .multiprocessors = few_multiprocessors};
    for (const DType dtype : floating_dtypes) check_product(c, dtype, dtype);
  });
}

// Sizes at, below and beyond the edges of tiles, of steps along k, and of vectors; more steps than
// fit in shared memory.
TEST(CudaMatmul, MultipliesUpToEveryEdge) {
  for (const ProductCase& c :
       {ProductCase{1, 1, 1}, ProductCase{1, 72, 33}, ProductCase{3, 5, 7}, ProductCase{64, 64, 32},
        ProductCase{65, 9, 31}, ProductCase{17, 66, 8}, ProductCase{33, 18, 300}}) {
    for_all_transposes([&c](bool transpose_a, bool transpose_b) {
      ProductCase each = c;
      each.transpose_a = transpose_a;
      each.transpose_b = transpose_b;
      for (const DType dtype : floating_dtypes) check_product(each, dtype, dtype);
    });
  }
}

TEST(CudaMatmul, ScalesAccumulatesAndAddsBias) {
  for (const bool accumulate : {false, true}) {
    for (const bool bias : {false, true}) {
      check_all_types(
          {.m = 20, .n = 23, .k = 17, .accumulate = accumulate, .bias = bias, .alpha = -0.75f});
    }
  }
}

TEST(CudaMatmul, TakesRowsAndPointersOfAnyAlignment) {
  for_all_transposes([](bool transpose_a, bool transpose_b) {
    for (const std::int64_t gap : {0, 1, 8}) {
      check_all_types({.m = 24,
                       .n = 24,
                       .k = 40,
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .accumulate = true,
                       .bias = true,
                       .gap = gap,
                       .offset = gap == 8 ? 0 : 1});
    }
  });
}

TEST(CudaMatmul, MultipliesBatches) {
  for (const bool one_b : {false, true}) {
    check_all_types({.m = 9,
                     .n = 12,
                     .k = 16,
                     .transpose_b = true,
                     .accumulate = true,
                     .bias = true,
                     .alpha = 0.5f,
                     .batch = 3,
                     .one_b = one_b,
                     .gap = 3});
  }
}

// Elements beyond k must not enter the result, not even as 0 * infinity.
TEST(CudaMatmul, NeverReadsBetweenTheRows) {
  for (const DType dtype : floating_dtypes) {
    const ProductCase c{.m = 5, .n = 6, .k = 7, .transpose_b = true, .gap = 9};
    Values values = values_of(c, dtype, dtype);
    const std::vector<double> clean = on_device(c, values, dtype, dtype, MatmulWay::own);
    for (std::vector<double>* const operand : {&values.a, &values.b}) {
      for (std::size_t i = 0; i < operand->size(); ++i) {
        if (static_cast<std::int64_t>(i) % (c.k + c.gap) >= c.k) {
          (*operand)[i] = std::numeric_limits<double>::infinity();
        }
      }
    }
    expect_equal("matmul", "c beside infinities", dtype,
                 part_of(c, on_device(c, values, dtype, dtype, MatmulWay::own), false),
                 part_of(c, clean, false));
  }
}

TEST(CudaMatmul, OfZeroDepthLeavesBiasAndTheOldValues) {
  check_all_types({.m = 6, .n = 10, .k = 0, .bias = true});
  check_all_types({.m = 6, .n = 10, .k = 0, .accumulate = true, .bias = true});
  check_all_types({.m = 6, .n = 10, .k = 0});
  for (const ProductCase& c : {ProductCase{0, 4, 4}, ProductCase{4, 0, 4},
                               ProductCase{.m = 4, .n = 4, .k = 4, .batch = 0}}) {
    for (const MatmulWay way : ways()) {
      EXPECT_TRUE(on_device(c, values_of(c, bfloat16, bfloat16), bfloat16, bfloat16, way).empty());
    }
  }
}

// The first rows of products with more rows, which use other tiles and other places in their tile.
TEST(CudaMatmul, RowsDoNotDependOnTheNumberOfRows) {
  for (const DType dtype : floating_dtypes) {
    ProductCase whole{.m = 150, .n = 72, .k = 90, .bias = true};
    whole.multiprocessors = few_multiprocessors;
    const Values values = values_of(whole, dtype, dtype);
    for (const MatmulWay way : ways()) {
      const std::vector<double> expected = on_device(whole, values, dtype, dtype, way);
      for (const std::int64_t rows : {1, 7, 64, 149}) {
        ProductCase part = whole;
        part.m = rows;
        part.multiprocessors = many_multiprocessors;
        Values of_part = values;
        of_part.a.resize(static_cast<std::size_t>(rows * whole.k));
        of_part.c.resize(static_cast<std::size_t>(rows * whole.n));
        const auto last = expected.begin() + rows * whole.n;
        expect_equal("matmul", fmt::format("{} of {} rows", rows, whole.m), dtype,
                     on_device(part, of_part, dtype, dtype, way), {expected.begin(), last});
      }
    }
  }
}

TEST(CudaMatmul, SplitsBatchesThatExceedAGrid) {
  Matmul p{};
  p.batch = 2 * kernels::cuda::most_products_of_a_launch + 1;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  kernels::cuda::for_launches(
      p, [&](std::int64_t first, std::int64_t count) { parts.emplace_back(first, count); });
  EXPECT_EQ(parts, (std::vector<std::pair<std::int64_t, std::int64_t>>{
                       {0, 65535}, {65535, 65535}, {131070, 1}}));
}

TEST(CudaMatmul, RefusesInvalidArguments) {
  TestContext context;
  const Matmul good = arguments_of({4, 4, 4}, bfloat16, bfloat16);
  const auto expect_refused = [&](auto&& change) {
    Matmul bad = good;
    change(bad);
    EXPECT_THROW(kernels::cuda::matmul(bad, context.queue()), std::logic_error);
  };
  expect_refused([](Matmul& p) { p.lda = 3; });
  expect_refused([](Matmul& p) { p.ldb = 3; });
  expect_refused([](Matmul& p) { p.ldc = 3; });
  expect_refused([](Matmul& p) { p.k = -1; });
  expect_refused([](Matmul& p) { p.m = std::int64_t{1} << 31; });
  expect_refused([](Matmul& p) { p.out_dtype = float16; });
  expect_refused([](Matmul& p) { p.dtype = p.out_dtype = int32; });
}

}  // namespace
}  // namespace tessera::testing
