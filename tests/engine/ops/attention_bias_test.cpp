// Attention's bias and widths of values in the engine: against the formula of other ops, with their
// plan, and refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/ops.h"
#include "engine/planned/kernel_work.h"
#include "engine/tensor_ops.h"
#include "support/gradient_check.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using testing::values;

// [batch, T, heads * width] as [batch, heads, T, width].
Tensor heads_of(const Tensor& x, std::int64_t heads) {
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t heads,
                const Tensor& bias) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(2) / heads));
  const Tensor scores =
      matmul(heads_of(q, heads), transpose(heads_of(k, heads))) * scale + cast(bias, q.dtype());
  const Tensor out = transpose(matmul(softmax(scores), heads_of(v, heads)), 1, 2);
  return reshape(out, {q.size(0), q.size(1), v.size(2)});
}

struct Leaves {
  Tensor q, k, v, bias;

  Leaves(const Shape& shape_of_bias, DType dtype)
      : q(leaf({3, 5, 8}, 1, dtype)),
        k(leaf({3, 7, 8}, 2, dtype)),
        v(leaf({3, 7, 6}, 3, dtype)),
        bias(leaf(shape_of_bias, 4, dtype)) {}
  static Tensor leaf(const Shape& shape, unsigned seed, DType dtype) {
    Tensor x = cast(values(shape, seed), dtype);
    x.set_requires_grad(true);
    return x;
  }
};

void expect_near(const Tensor& got, const Tensor& wanted, double tolerance, const char* what) {
  ASSERT_EQ(got.shape(), wanted.shape()) << what;
  const std::vector<double> x = got.to_vector(), y = wanted.to_vector();
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance) << what << i;
}

TEST(AttentionBias, EqualsTheFormulaOfOtherOps) {
  for (const DType dtype : {float64, float32}) {
    for (const Shape& shape : {Shape{5, 7}, Shape{2, 5, 7}, Shape{1, 5, 7}, Shape{3, 1, 5, 7},
                               Shape{3, 2, 5, 7}, Shape{1, 2, 5, 7}}) {
      SCOPED_TRACE(shape.to_string());
      const Leaves ours(shape, dtype), theirs(shape, dtype);
      const Tensor out = attention(ours.q, ours.k, ours.v, {.heads = 2, .bias = ours.bias});
      const Tensor wanted = composed(theirs.q, theirs.k, theirs.v, 2, theirs.bias);
      const double tolerance = dtype == float64 ? 1e-14 : 1e-6;
      expect_near(out, wanted, tolerance, "out");
      sum(square(out)).backward();
      sum(square(wanted)).backward();
      expect_near(ours.q.grad(), theirs.q.grad(), 4 * tolerance, "dq");
      expect_near(ours.k.grad(), theirs.k.grad(), 4 * tolerance, "dk");
      expect_near(ours.v.grad(), theirs.v.grad(), 4 * tolerance, "dv");
      expect_near(ours.bias.grad(), theirs.bias.grad(), 4 * tolerance, "dbias");
    }
  }
}

// A bias in bfloat16 gets a gradient in bfloat16; -inf hides keys.
TEST(AttentionBias, TakesAnyFloatingTypeAndHidesKeys) {
  Tensor bias = Leaves::leaf({2, 5, 7}, 4, bfloat16);
  const Leaves x({5, 7}, float32);
  const Tensor out = attention(x.q, x.k, x.v, {.heads = 2, .bias = bias});
  sum(square(out)).backward();
  Tensor wide = cast(bias.detach(), float32).clone();
  wide.set_requires_grad(true);
  const Tensor wanted = attention(x.q, x.k, x.v, {.heads = 2, .bias = wide});
  sum(square(wanted)).backward();
  EXPECT_EQ(out.to_vector(), wanted.to_vector());
  EXPECT_EQ(bias.grad().dtype(), bfloat16);
  EXPECT_EQ(bias.grad().to_vector(), cast(wide.grad(), bfloat16).to_vector());
  std::vector<float> hidden(35, 0.0F);
  for (std::size_t i = 0; i < 5; ++i) hidden[7 * i + 6] = -INFINITY;
  std::vector<std::uint8_t> mask(21, 1);
  for (std::size_t i = 6; i < 21; i += 7) mask[i] = 0;
  const Tensor by_bias =
      attention(x.q, x.k, x.v, {.heads = 2, .bias = Tensor::from(hidden, {5, 7})});
  const Tensor by_mask =
      attention(x.q, x.k, x.v, {.heads = 2, .key_mask = Tensor::from(mask, {3, 7})});
  EXPECT_EQ(by_bias.to_vector(), by_mask.to_vector());
}

// Element (i, j) is of the distance j - p; p is i, or later if there are more keys.
TEST(AttentionBias, OfDistancesIsTheirMatrix) {
  const Tensor table = values({11, 2}, 1);  // distances -5 to 5
  const std::vector<double> rows = table.to_vector();
  for (const auto& [queries, keys] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {1, 4}, {3, 3}, {2, 6}, {6, 6}}) {
    const std::vector<double> matrix = distance_bias(table, queries, keys).to_vector();
    std::size_t at = 0;
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t j = 0; j < keys; ++j, ++at) {
          const std::int64_t distance = j - (i + keys - queries);
          EXPECT_EQ(matrix[at], rows[static_cast<std::size_t>((distance + 5) * 2 + h)]);
        }
      }
    }
  }
  EXPECT_EQ(
      testing::misuse_of([&] { (void)distance_bias(table, 3, 7); }),
      "distance_bias: distances of shape [11, 2] for 3 queries and 7 keys; [2 * L - 1, heads] "
      "with L of at least the keys, and no more queries than keys");
}

// T5's encoder adds the same biases without their matrix.
TEST(AttentionBias, OfDistancesIsTheBiasOfSequences) {
  const Leaves x({1, 1}, float64);
  Tensor table = Leaves::leaf({9, 2}, 5, float64), other = Leaves::leaf({9, 2}, 5, float64);
  const Tensor q = x.q.detach(), k = narrow(x.k.detach(), 1, 0, 5), v = values({3, 5, 8}, 6);
  const Tensor out = attention(q, k, v, {.heads = 2, .bias = distance_bias(table, 5, 5)});
  std::vector<std::int32_t> slots(15);
  std::iota(slots.begin(), slots.end(), 0);
  const Sequences sequences{.starts = Tensor::from(std::vector<std::int32_t>{0, 5, 10}, {3}),
                            .lengths = Tensor::from(std::vector<std::int32_t>{5, 5, 5}, {3}),
                            .slots = Tensor::from(slots, {15}),
                            .longest = 5,
                            .capacity = 5};
  const Tensor rows =
      sequence_attention(reshape(q, {15, 8}), reshape(k, {15, 8}), reshape(v, {15, 8}), sequences,
                         {.heads = 2, .relative_bias = other});
  expect_near(out, reshape(rows, {3, 5, 8}), 1e-14, "out");
  sum(square(out)).backward();
  sum(square(rows)).backward();
  expect_near(table.grad(), other.grad(), 1e-13, "dtable");
}

TEST(AttentionBias, WrongShapesAreRefused) {
  const Tensor x = values({2, 4, 6}, 1);
  const auto refusal = [&](const Tensor& bias) {
    return testing::misuse_of([&] { (void)attention(x, x, x, {.heads = 2, .bias = bias}); });
  };
  EXPECT_EQ(refusal(values({3, 4, 4}, 2)),
            "attention: a bias of shape [3, 4, 4] for queries [2, 4, 6] of 2 heads and 4 keys; it "
            "is [batch or 1, heads or 1, queries, keys], without leading dimensions if they are 1");
  for (const Shape& shape :
       {Shape{4}, Shape{4, 5}, Shape{2, 5, 4}, Shape{3, 2, 4, 4}, Shape{1, 2, 2, 4, 4}}) {
    EXPECT_NE(refusal(Tensor::zeros(shape)).find("a bias of shape " + shape.to_string()),
              std::string::npos);
  }
  EXPECT_NE(refusal(Tensor::zeros({4, 4}, int32)).find("int32"), std::string::npos);
  EXPECT_EQ(testing::misuse_of([&] {
              (void)packed_attention(x, {.heads = 2, .bias = Tensor::zeros({4, 3})});
            }).find("packed_attention: a bias of shape [4, 3]"),
            0u);
}

TEST(AttentionWidths, WrongWidthsAreRefused) {
  const Tensor q = values({2, 4, 6}, 1), v = values({2, 4, 5}, 1), longer = values({2, 5, 6}, 1);
  const auto refusal = [&](const Tensor& values) {
    return testing::misuse_of([&] { (void)attention(q, q, values, {.heads = 2}); });
  };
  EXPECT_EQ(refusal(v),
            "attention: q float64 [2, 4, 6], k float64 [2, 4, 6], v float64 [2, 4, 5] with 2 heads "
            "and 2 key heads; of one dtype, q is [batch, queries, heads * D], k [batch, keys, key "
            "heads * D], v [batch, keys, key heads * Dv]");
  EXPECT_NE(refusal(longer).find("v float64 [2, 5, 6]"), std::string::npos);
}

// The products of a score have 2 x 3 + 1 x 5 operations forward, and 3 x 3 + 2 x 5 backward; the
// gradient of the bias adds those of the forward.
TEST(AttentionWidths, APlanCountsBothWidthsAndTheBias) {
  kernels::AttentionShape shape{};
  shape.batch = shape.heads = shape.key_heads = 1;
  shape.head_dim = 3;
  shape.value_dim = 5;
  shape.query_length = shape.key_length = 10;
  shape.dtype = float32;
  kernels::AttentionForward forward{};
  forward.shape = shape;
  kernels::AttentionBackward backward{};
  backward.shape = shape;
  EXPECT_EQ(work_of(forward).operations, 2 * 100 * (3 + 5));
  EXPECT_EQ(work_of(backward).operations, 2 * 100 * (3 * 3 + 2 * 5));
  EXPECT_EQ(work_of(backward).recomputed, 2 * 100 * 3);
  EXPECT_EQ(work_of(forward).bytes, 4 * 20 * (3 + 5));
  float bias = 0;
  forward.shape.bias = backward.shape.bias = &bias;
  backward.bias_gradient = &bias;
  EXPECT_EQ(work_of(backward).operations, 2 * 100 * (4 * 3 + 3 * 5));
  EXPECT_EQ(work_of(backward).recomputed, 2 * 100 * (2 * 3 + 5));
  EXPECT_EQ(work_of(forward).bytes, 4 * 20 * (3 + 5) + 4 * 100);
}

}  // namespace
}  // namespace tessera
