// Products of broadcast and transposed matrices, and einsum, against loops in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;

Tensor factor(const Shape& shape, unsigned seed, DType dtype = float32) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Doubles values(static_cast<std::size_t>(shape.elements()));
  for (double& value : values) value = normal(generator);
  return cast(Tensor::from(values, shape), dtype);
}

void expect_close(const Tensor& got, const Tensor& wanted, double tolerance) {
  ASSERT_EQ(got.shape(), wanted.shape());
  const Doubles a = got.to_vector(), b = wanted.to_vector();
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i]))) << i;
  }
}

// The product as a sum over a broadcast dimension.
Tensor by_broadcast(const Tensor& a, const Tensor& b) {
  return sum(unsqueeze(cast(a, float64), -1) * unsqueeze(cast(b, float64), -3), -2);
}

TEST(Products, OfBroadcastBatchesInEveryLayout) {
  const std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> batches[] = {
      {{}, {}}, {{3}, {}}, {{}, {3}}, {{1}, {3}}, {{2, 3}, {2, 3}}, {{2, 1}, {3}}, {{2, 3}, {3}}};
  for (const DType dtype : {float32, bfloat16, float64}) {
    for (auto [left, right] : batches) {
      left.insert(left.end(), {4, 5});
      right.insert(right.end(), {5, 6});
      const Tensor a = factor(Shape(left), 1, dtype), b = factor(Shape(right), 2, dtype);
      const Tensor wanted = cast(by_broadcast(a, b), dtype);
      const double tolerance = dtype == bfloat16 ? 0x1p-8 : 1e-5;
      expect_close(matmul(a, b), wanted, tolerance);
      expect_close(matmul(transpose(a), b, {.a = true}), wanted, tolerance);
      expect_close(matmul(a, transpose(b), {.b = true}), wanted, tolerance);
      expect_close(matmul(transpose(a), transpose(b), {.a = true, .b = true}), wanted, tolerance);
    }
  }
}

TEST(Products, OfVectorsAndOfNothing) {
  const Tensor matrices = factor({2, 3, 3}, 3), vector = factor({3}, 4);
  EXPECT_EQ(matmul(matrices, vector).shape(), (Shape{2, 3}));
  EXPECT_EQ(matmul(vector, matrices).shape(), (Shape{2, 3}));
  EXPECT_EQ(matmul(vector, vector).shape(), (Shape{}));
  expect_close(matmul(vector, vector), sum(vector * vector), 1e-5);
  EXPECT_EQ(matmul(Tensor::zeros({0, 2, 3}), Tensor::zeros({3, 4})).shape(), (Shape{0, 2, 4}));
  EXPECT_EQ(sum(matmul(Tensor::zeros({2, 0}), Tensor::zeros({0, 4}))).item(), 0);
}

TEST(Products, EinsumIsTheSumsThatItNames) {
  const Tensor q = factor({2, 3, 4, 5}, 5), k = factor({2, 3, 6, 5}, 6);
  expect_close(einsum("bhqd,bhkd->bhqk", {q, k}), matmul(q, k, {.b = true}), 1e-5);
  const Tensor a = factor({2, 3}, 7), b = factor({3, 4}, 8);
  expect_close(einsum("ij,jk", {a, b}), matmul(a, b), 1e-5);
  expect_close(einsum("ij, jk -> ki", {a, b}), transpose(matmul(a, b)), 1e-5);
  expect_close(einsum("ij->", {a}), sum(a), 1e-5);
  expect_close(einsum("ij->j", {a}), sum(a, 0), 1e-5);
  expect_close(einsum("ji", {a}), transpose(a), 1e-5);
  expect_close(einsum("i,j->ij", {select(a, 0, 0), select(b, 0, 0)}),
               unsqueeze(select(a, 0, 0), 1) * unsqueeze(select(b, 0, 0), 0), 1e-5);
  expect_close(einsum("ij,jk->i", {a, b}), sum(matmul(a, b), 1), 1e-5);
}

TEST(Products, RefusalsNameTheOpTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 3});
  const auto refused = [](auto&& call) { return testing::misuse_of(call); };
  EXPECT_EQ(refused([&] { return matmul(x, x, {.a = true, .b = true}); }),
            "matmul of [2, 3] transposed and [2, 3] transposed: the first has 2 columns and the "
            "second 3 rows, which must "
            "be equal; for a weight of shape [outputs, inputs] use linear()");
  EXPECT_EQ(refused([&] { return einsum("ij,jk->ik", {x}); }),
            "einsum: \"ij,jk->ik\" has 2 operands and 1 are given; one or two");
  EXPECT_EQ(refused([&] { return einsum("ii->i", {x}); }),
            "einsum: \"ii->i\" has 'i' in \"ii\"; each dimension is one letter, which occurs once");
  EXPECT_EQ(refused([&] { return einsum("ij->k", {x}); }),
            "einsum: the result of \"ij->k\" has 'k', which no operand has");
  EXPECT_EQ(refused([&] { return einsum("ijk->i", {x}); }),
            "einsum: \"ijk\" of \"ijk->i\" names 3 dimensions of a tensor of shape [2, 3]");
  EXPECT_EQ(refused([&] {
              return einsum("ij,jk->ik", {x, x});
            }),
            "einsum: 'j' of \"ij,jk->ik\" has sizes 3 and 2");
}

}  // namespace
}  // namespace tessera
