// Attention's window, soft cap and documents in the engine: the ops agree with each other, wrong
// options are refused, and a plan counts the scores that a window leaves.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/ops.h"
#include "engine/ops/cache.h"
#include "engine/planned/kernel_work.h"
#include "engine/tensor_ops.h"
#include "support/gradient_check.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using testing::values;

void expect_near_tensor(const Tensor& got, const Tensor& expected, double tolerance) {
  ASSERT_EQ(got.shape(), expected.shape());
  const std::vector<double> x = got.to_vector(), y = expected.to_vector();
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance) << i;
}

Tensor document_ids(const std::vector<std::int64_t>& ids) {
  return Tensor::from(ids, {1, static_cast<std::int64_t>(ids.size())});
}

TEST(DocumentStarts, AreTheFirstPositions) {
  const Tensor ids = Tensor::from(std::vector<std::int32_t>{0, 0, 2, 2, 2, 3, 7, 7, 7, 7}, {2, 5});
  const Tensor starts = document_starts(ids);
  EXPECT_EQ(starts.dtype(), int32);
  EXPECT_EQ(starts.to_vector(), (std::vector<double>{0, 0, 2, 2, 2, 0, 1, 1, 1, 1}));
}

TEST(DocumentStarts, RefusesWrongIds) {
  const std::string falls = testing::misuse_of([] {
    (void)document_starts(document_ids({1, 1, 0}));
  });
  EXPECT_NE(falls.find("document 0 at position 2 of row 0"), std::string::npos) << falls;
  EXPECT_NE(falls.find("must not decrease"), std::string::npos) << falls;
  const std::string flat = testing::misuse_of([] {
    (void)document_starts(Tensor::from(std::vector<std::int64_t>{0, 1}, {2}));
  });
  EXPECT_NE(flat.find("[batch, positions]"), std::string::npos) << flat;
  const std::string real = testing::misuse_of([] { (void)document_starts(Tensor::zeros({1, 2})); });
  EXPECT_NE(real.find("int32 or int64"), std::string::npos) << real;
}

// Packed documents have the results of each document alone.
TEST(AttentionVariants, PackedDocumentsAreSeparate) {
  const Tensor q = values({1, 9, 8}, 1), k = values({1, 9, 8}, 2), v = values({1, 9, 8}, 3);
  AttentionOptions options{.heads = 2, .causal = true, .window = 3};
  AttentionOptions packed = options;
  packed.document_starts = document_starts(document_ids({0, 0, 0, 0, 1, 2, 2, 2, 2}));
  const Tensor together = attention(q, k, v, packed);
  std::vector<Tensor> alone;
  for (const auto& [first, last] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 5}, {5, 9}}) {
    const auto part = [&, from = first, to = last](const Tensor& x) {
      return slice(x, 1, from, to);
    };
    alone.push_back(attention(part(q), part(k), part(v), options));
  }
  expect_near_tensor(together, concatenate(alone, 1), 1e-14);
}

// Decoding with a cache gives the last rows of attention over the whole text.
TEST(AttentionVariants, CachedAttentionIsTheEndOfAttention) {
  const NoGradGuard no_grad;
  const Tensor q = values({1, 20, 16}, 1), k = values({1, 20, 8}, 2), v = values({1, 20, 8}, 3);
  AttentionOptions options{
      .heads = 4, .key_heads = 2, .causal = true, .window = 6, .soft_cap = 0.7};
  for (const Tensor& sinks : {Tensor(), values({4}, 4)}) {
    options.sinks = sinks;
    const Tensor whole = attention(q, k, v, options);
    const CachedRows cache{
        .keys = reshape(k, {20, 8}), .values = reshape(v, {20, 8}), .length = 20};
    for (const std::int64_t tokens : {1, 3, 20}) {
      const Tensor last = cached_attention(slice(q, 1, 20 - tokens, 20), 4, cache, options);
      expect_near_tensor(last, slice(whole, 1, 20 - tokens, 20), 1e-14);
    }
  }
}

// The same with sinks, a bias and values of another width, by the path for one query and by blocks.
TEST(AttentionVariants, CachedAttentionWithSinksAndBias) {
  const NoGradGuard no_grad;
  const Tensor q = values({1, 20, 16}, 1), k = values({1, 20, 8}, 2), v = values({1, 20, 6}, 3),
               bias = values({4, 20, 20}, 5);
  for (const bool biased : {false, true}) {
    AttentionOptions options{
        .heads = 4, .key_heads = 2, .causal = true, .window = 6, .sinks = values({4}, 4)};
    if (biased) options.bias = bias;
    const Tensor whole = attention(q, k, v, options);
    EXPECT_NE(
        whole.to_vector(),
        attention(q, k, v, {.heads = 4, .key_heads = 2, .causal = true, .window = 6}).to_vector());
    const CachedRows cache{
        .keys = reshape(k, {20, 8}), .values = reshape(v, {20, 6}), .length = 20, .value_dim = 3};
    for (const std::int64_t tokens : {1, 3, 20}) {
      if (biased) options.bias = slice(bias, 1, 20 - tokens, 20);
      const Tensor last = cached_attention(slice(q, 1, 20 - tokens, 20), 4, cache, options);
      expect_near_tensor(last, slice(whole, 1, 20 - tokens, 20), 1e-14);
    }
  }
}

TEST(AttentionVariants, CachedAttentionRefusesSinksOfOtherHeads) {
  const NoGradGuard no_grad;
  const Tensor x = values({1, 4, 6}, 1), rows = values({4, 6}, 2);
  const std::string message = testing::misuse_of([&] {
    (void)cached_attention(x, 3, {.keys = rows, .values = rows, .length = 4},
                           {.heads = 2, .causal = true, .sinks = values({3}, 4)});
  });
  EXPECT_EQ(message,
            "cached_attention: sinks of shape [3] for 2 heads; one number for each query head");
}

TEST(AttentionVariants, AWindowOfTheWholeLengthChangesNoBit) {
  const Tensor x = values({2, 7, 6}, 1);
  const AttentionOptions plain{.heads = 2, .causal = true};
  AttentionOptions wide = plain;
  wide.window = 7;
  EXPECT_EQ(attention(x, x, x, wide).to_vector(), attention(x, x, x, plain).to_vector());
}

TEST(AttentionVariants, WrongOptionsAreRefused) {
  const Tensor x = values({2, 4, 6}, 1), longer = values({2, 5, 6}, 2);
  const auto refusal = [&](const AttentionOptions& options, const Tensor& keys) {
    return testing::misuse_of([&] { (void)attention(x, keys, keys, options); });
  };
  const auto expect_named = [](const std::string& message, const char* what) {
    EXPECT_EQ(message.find("attention: "), 0u) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  expect_named(refusal({.causal = true, .window = 0}, x), "a window of 0 with queries [2, 4, 6]");
  expect_named(refusal({.window = 2}, x), "needs causal attention");
  for (const double cap : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    expect_named(refusal({.soft_cap = cap}, x), "must be above 0 and finite");
  }
  const Tensor starts = Tensor::zeros({2, 4}, int32);
  expect_named(refusal({.document_starts = starts}, x), "causal = false");
  expect_named(refusal({.causal = true, .document_starts = starts}, longer),
               "4 queries and 5 keys");
  expect_named(refusal({.causal = true, .document_starts = Tensor::zeros({2, 3}, int32)}, x),
               "document_starts of int32 [2, 3]");
  expect_named(refusal({.causal = true, .document_starts = Tensor::zeros({2, 4}, int64)}, x),
               "document_starts of int64");
  // Values are checked on the CPU, where the kernel reads them anyway.
  const std::string late =
      refusal({.causal = true, .document_starts = Tensor::full({2, 4}, 3, int32)}, x);
  EXPECT_NE(late.find("document_starts must not decrease"), std::string::npos) << late;
}

TEST(AttentionVariants, CachedAttentionRefusesDocuments) {
  const NoGradGuard no_grad;
  const Tensor x = values({1, 4, 6}, 1), rows = values({4, 6}, 2);
  const std::string message = testing::misuse_of([&] {
    (void)cached_attention(x, 3, {.keys = rows, .values = rows, .length = 4},
                           {.heads = 2,
                            .causal = true,
                            .document_starts = document_starts(document_ids({0, 0, 1, 1}))});
  });
  EXPECT_NE(message.find("a key mask or documents"), std::string::npos) << message;
}

// Query t of 10 sees min(t + 1, 4) keys: 34 scores instead of 55.
TEST(AttentionVariants, APlanCountsTheWindowsScores) {
  kernels::AttentionForward call{};
  kernels::AttentionShape& shape = call.shape;
  shape.batch = shape.heads = shape.key_heads = shape.head_dim = 1;
  shape.query_length = shape.key_length = 10;
  shape.causal = true;
  shape.dtype = float32;
  EXPECT_EQ(work_of(call).operations, 2 * 2 * 55);
  shape.window = 4;
  EXPECT_EQ(work_of(call).operations, 2 * 2 * 34);
  shape.query_length = 3;
  EXPECT_EQ(work_of(call).operations, 2 * 2 * 12);
}

// The documents are made on the CPU, whatever device new tensors have by default.
TEST(AttentionVariants, DocumentsAreMadeUnderAnotherDefaultDevice) {
  const Tensor ids = Tensor::from({3, 3, 8, 8, 8}, {1, 5});
  const DeviceGuard meta(Device::meta());
  const Tensor starts = document_starts(ids);
  EXPECT_EQ(starts.device(), Device::cpu());
  EXPECT_EQ(starts.to_vector(), (std::vector<double>{0, 0, 2, 2, 2}));
}

}  // namespace
}  // namespace tessera
