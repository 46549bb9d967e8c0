// Compares every differentiable op with central differences in fp64, in all its shapes and options,
// on one device. The last test fails when no check reached an op of engine/op_list.h.
// A test program includes this once and defines checked_device():
// tests/engine/gradient_check_test.cpp checks the CPU's ops,
// tests/cuda/engine/gradient_check_test.cpp the GPU's.
#pragma once

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/autograd.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "engine/tensor_ops.h"
#include "support/gradient_check.h"

namespace tessera::gradient_cases {

using kernels::UnaryOp;
using testing::CheckOptions;
using testing::leaf;
using testing::values;
using testing::weighted_sum;

// The device whose ops are checked, and the number of elements of a leaf that are perturbed (0:
// all). The including file defines both.
Device checked_device();
std::size_t checked_elements();

inline void check_gradients(const std::function<Tensor()>& function,
                            const std::vector<Tensor>& leaves, CheckOptions options = {}) {
  const std::size_t most = checked_elements();
  if (most > 0 && (options.max_elements == 0 || options.max_elements > most))
    options.max_elements = most;
  testing::check_gradients(function, leaves, options);
}

class GradientCheck : public ::testing::Test {
 protected:
  void SetUp() override { set_default_device(checked_device()); }
  void TearDown() override { set_default_device(Device::cpu()); }
};

// Ids, masks and tables are on the device of the leaves.
template <class T>
Tensor constant(const std::vector<T>& values, const Shape& shape) {
  return Tensor::from(values, shape).to(default_device());
}

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);

TEST_F(GradientCheck, ArithmeticWithEveryBroadcast) {
  for (const BinaryFunction op : {BinaryFunction(add), BinaryFunction(subtract),
                                  BinaryFunction(multiply), BinaryFunction(divide)}) {
    for (const Shape& shape : {Shape{3, 2, 5}, Shape{2, 5}, Shape{5}, Shape{1}, Shape{}}) {
      SCOPED_TRACE(shape.to_string());
      const Tensor a = leaf({3, 2, 5}, 1);
      const Tensor b = leaf(shape, 2, 0.7, 1.9);
      check_gradients([&] { return weighted_sum(op(a, b)); }, {a, b});
    }
  }
}

TEST_F(GradientCheck, ArithmeticOfATensorWithItself) {
  const Tensor x = leaf({2, 3}, 3, 0.5, 1.5);
  check_gradients([&] { return weighted_sum(x * x + x / x - (x - x) + x); }, {x});
}

TEST_F(GradientCheck, ArithmeticWithOneOperandWithoutGradient) {
  const Tensor a = leaf({2, 3}, 4);
  const Tensor fixed = values({3}, 5, 0.5, 1.5);
  check_gradients([&] { return weighted_sum((a * fixed + fixed) / fixed - fixed); }, {a});
  const Tensor b = leaf({3}, 6, 0.5, 1.5);
  const Tensor wide = values({2, 3}, 7);
  check_gradients([&] { return weighted_sum(wide * b + wide / b - b); }, {b});
}

TEST_F(GradientCheck, Affine) {
  const Tensor x = leaf({4, 3}, 8);
  check_gradients([&] { return weighted_sum(affine(x, -2.5, 0.75) + (x * 3.0 + 1.0)); }, {x});
}

TEST_F(GradientCheck, OperatorsWithNumbers) {
  const Tensor x = leaf({4, 3}, 8, 0.5, 1.5);
  check_gradients([&] { return weighted_sum(-x + (1.5 + x) * 2.0); }, {x});
  check_gradients([&] { return weighted_sum((x - 0.5) * (2.0 - x) / 3.0); }, {x});
  check_gradients([&] { return weighted_sum(2.0 * (1.0 / x) - 1.0); }, {x});
}

TEST_F(GradientCheck, UnaryFunctions) {
  for (const UnaryOp op :
       {UnaryOp::negate, UnaryOp::relu, UnaryOp::gelu_erf, UnaryOp::gelu_tanh, UnaryOp::silu,
        UnaryOp::tanh, UnaryOp::sigmoid, UnaryOp::exp, UnaryOp::square}) {
    SCOPED_TRACE(static_cast<int>(op));
    const Tensor x = leaf({37}, 9, -2.5, 2.5);
    check_gradients([&] { return weighted_sum(unary(op, x)); }, {x});
  }
  for (const UnaryOp op : {UnaryOp::log, UnaryOp::sqrt}) {
    const Tensor x = leaf({37}, 10, 0.4, 3.0);
    check_gradients([&] { return weighted_sum(unary(op, x)); }, {x});
  }
}

TEST_F(GradientCheck, CastsThatKeepThePrecision) {
  // To fp32 and back: the checked function stays smooth at steps far above fp32's resolution.
  const Tensor x = leaf({6}, 11);
  check_gradients([&] { return weighted_sum(cast(cast(x, float32), float64)); }, {x},
                  {.step = 1e-2, .tolerance = 1e-4});
}

TEST_F(GradientCheck, Reshape) {
  const Tensor x = leaf({2, 6}, 12);
  const Tensor y = leaf({4}, 13);
  check_gradients(
      [&] {
        return weighted_sum(reshape(x, {3, 4}) * y + reshape(x, {3, 4}));
      },
      {x, y});
}

TEST_F(GradientCheck, ReshapeWithOneSizeFound) {
  const Tensor x = leaf({2, 6}, 12);
  const Tensor y = leaf({4}, 13);
  const auto function = [&] {
    const Tensor rows = reshape(x, {-1, 4});
    return weighted_sum(rows * y) + weighted_sum(square(reshape(rows, {-1})));
  };
  check_gradients(function, {x, y});
}

TEST_F(GradientCheck, Concatenate) {
  const Tensor a = leaf({2, 3}, 12);
  const Tensor b = leaf({1, 3}, 13);
  const Tensor c = leaf({4}, 14);
  const auto function = [&] {
    // A part that occurs twice, parts without elements, and one dimension.
    const Tensor rows = concatenate({a, b * 2.0, a, Tensor::empty({0, 3}, float64)});
    return weighted_sum(square(rows)) + weighted_sum(square(concatenate({c, c * 0.5})));
  };
  check_gradients(function, {a, b, c});
  const Tensor fixed = values({3, 3}, 15);
  check_gradients([&] { return weighted_sum(square(concatenate({fixed, a}))); }, {a});
}

TEST_F(GradientCheck, AnOpOfAProgramOfItsOwn) {
  const Tensor x = leaf({4}, 16);
  const auto doubled = [](const Tensor& in) {
    const Tensor out = (in.detach() * 2.0).clone();
    autograd::record(Op::custom, {in}, {out},
                     [](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                       sink.add(0, affine(dout[0], 2.0));
                     });
    return out;
  };
  check_gradients([&] { return weighted_sum(square(doubled(x))); }, {x});
}

TEST_F(GradientCheck, SumAndMean) {
  const Tensor x = leaf({3, 5}, 14);
  check_gradients([&] { return square(sum(x)) + mean(x * x); }, {x});
}

TEST_F(GradientCheck, Softmax) {
  for (const std::int64_t columns : {1, 2, 9, 33}) {
    const Tensor x = leaf({2, 3, columns}, 15, -3, 3);
    check_gradients([&] { return weighted_sum(softmax(x)); }, {x});
  }
}

TEST_F(GradientCheck, MatrixProducts) {
  const Tensor a = leaf({4, 3}, 16);
  const Tensor b = leaf({3, 5}, 17);
  check_gradients([&] { return weighted_sum(matmul(a, b)); }, {a, b});
  const Tensor c = leaf({2, 4, 3}, 18);
  const Tensor d = leaf({2, 3, 5}, 19);
  check_gradients([&] { return weighted_sum(matmul(c, d)); }, {c, d});
  const Tensor square_matrix = leaf({3, 3}, 20);
  check_gradients([&] { return weighted_sum(matmul(square_matrix, square_matrix)); },
                  {square_matrix});
}

TEST_F(GradientCheck, LinearInBothLayouts) {
  for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    const Tensor x = leaf({2, 3, 4}, 21);
    const Tensor weight = leaf(layout == WeightLayout::out_in ? Shape{5, 4} : Shape{4, 5}, 22);
    const Tensor bias = leaf({5}, 23);
    check_gradients([&] { return weighted_sum(linear(x, weight, bias, layout)); },
                    {x, weight, bias});
    check_gradients([&] { return weighted_sum(linear(x, weight, {}, layout)); }, {x, weight});
    const Tensor row = leaf({4}, 24);
    check_gradients([&] { return weighted_sum(linear(row, weight, bias, layout)); },
                    {row, weight, bias});
    const Tensor data = values({2, 3, 4}, 25);
    check_gradients([&] { return weighted_sum(linear(data, weight, bias, layout)); },
                    {weight, bias});
  }
}

TEST_F(GradientCheck, BiasGeluLinear) {
  for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    for (const bool exact : {false, true}) {
      const Tensor x = leaf({2, 3, 4}, 26, -2, 2);
      const Tensor bias_in = leaf({4}, 27);
      const Tensor weight = leaf(layout == WeightLayout::out_in ? Shape{5, 4} : Shape{4, 5}, 28);
      const Tensor bias = leaf({5}, 29);
      const auto all = [&] {
        return weighted_sum(bias_gelu_linear(x, bias_in, weight, bias, layout, exact));
      };
      check_gradients(all, {x, bias_in, weight, bias});
      const auto bare = [&] {
        return weighted_sum(bias_gelu_linear(x * 1.5, {}, weight, {}, layout, exact));
      };
      check_gradients(bare, {x, weight});
      const Tensor frozen = weight.detach();
      const auto input_only = [&] {
        return weighted_sum(bias_gelu_linear(x, bias_in, frozen, {}, layout, exact));
      };
      check_gradients(input_only, {x, bias_in});
    }
  }
}

TEST_F(GradientCheck, SwigluLinear) {
  for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    const Tensor gate = leaf({2, 3, 4}, 30, -2, 2);
    const Tensor up = leaf({2, 3, 4}, 31);
    const Tensor weight = leaf(layout == WeightLayout::out_in ? Shape{5, 4} : Shape{4, 5}, 32);
    check_gradients([&] { return weighted_sum(swiglu_linear(gate, up, weight, layout)); },
                    {gate, up, weight});
    check_gradients([&] { return weighted_sum(swiglu_linear(gate, gate, weight, layout)); },
                    {gate, weight});
  }
}

TEST_F(GradientCheck, Embedding) {
  const Tensor table = leaf({7, 3}, 33);
  const Tensor ids = constant(std::vector<std::int32_t>{6, 0, 2, 2, 2, 5}, {2, 3});
  const Tensor long_ids = constant(std::vector<std::int64_t>{1, 1}, {2});
  check_gradients([&] { return weighted_sum(embedding(ids, table)); }, {table});
  const auto tied = [&] {  // as the head of a language model
    return weighted_sum(linear(embedding(ids, table), table)) +
           weighted_sum(embedding(long_ids, table));
  };
  check_gradients(tied, {table});
}

TEST_F(GradientCheck, Norms) {
  for (const Shape& shape : {Shape{2, 3, 8}, Shape{3, 5}, Shape{1, 17}}) {
    const Tensor x = leaf(shape, 34, -2, 2);
    const Tensor gamma = leaf({shape[-1]}, 35, 0.5, 1.5);
    const Tensor beta = leaf({shape[-1]}, 36);
    check_gradients([&] { return weighted_sum(layer_norm(x, gamma, beta)); }, {x, gamma, beta});
    check_gradients([&] { return weighted_sum(layer_norm(x, {}, {})); }, {x});
    check_gradients([&] { return weighted_sum(layer_norm(x, gamma, {}, 1e-3)); }, {x, gamma});
    check_gradients([&] { return weighted_sum(rms_norm(x, gamma)); }, {x, gamma});
    check_gradients([&] { return weighted_sum(rms_norm(x, {}, 1e-2)); }, {x});
    const Tensor data = values(shape, 37);
    check_gradients([&] { return weighted_sum(layer_norm(data, gamma, beta)); }, {gamma, beta});
  }
}

TEST_F(GradientCheck, NormsFusedWithTheResidualAddition) {
  const Tensor x = leaf({2, 3, 6}, 38);
  const Tensor residual = leaf({2, 3, 6}, 39);
  const Tensor gamma = leaf({6}, 40, 0.5, 1.5);
  const Tensor beta = leaf({6}, 41);
  const auto both = [&] {
    const auto [total, out] = add_layer_norm(x, residual, gamma, beta);
    return weighted_sum(total, 1) + weighted_sum(out, 2);
  };
  check_gradients(both, {x, residual, gamma, beta});
  const auto both_rms = [&] {
    const auto [total, out] = add_rms_norm(x, residual, gamma);
    return weighted_sum(total, 1) + weighted_sum(out, 2);
  };
  check_gradients(both_rms, {x, residual, gamma});
  const auto norm_only = [&] {
    return weighted_sum(add_layer_norm(x, residual, gamma, beta).second);
  };
  check_gradients(norm_only, {x, residual, gamma, beta});
  const auto sum_only = [&] {
    return weighted_sum(add_layer_norm(x, residual, gamma, beta).first);
  };
  check_gradients(sum_only, {x, residual});
  const auto doubled = [&] { return weighted_sum(add_rms_norm(x, x, gamma).second); };
  check_gradients(doubled, {x, gamma});
}

TEST_F(GradientCheck, LinearLayersThatComputeANormAgain) {
  const Tensor x = leaf({2, 3, 6}, 60);
  const Tensor residual = leaf({2, 3, 6}, 61);
  const Tensor gamma = leaf({6}, 62, 0.5, 1.5);
  const Tensor beta = leaf({6}, 63);
  const Tensor first = leaf({4, 6}, 64);
  const Tensor second = leaf({4, 6}, 65);
  const auto function = [&] {
    const auto [total, out] = add_layer_norm(x, residual, gamma, beta);
    const Tensor plain = rms_norm(total, gamma);
    return weighted_sum(linear(out, first)) +
           weighted_sum(linear(out, second) * linear(plain, first));
  };
  check_gradients(function, {x, residual, gamma, beta, first, second});
}

TEST_F(GradientCheck, DropoutWithAFixedKey) {
  manual_seed(3);
  const Tensor x = leaf({4, 9}, 42);
  const auto function = [&] {
    begin_batch({.step = 5, .first_sample = 2, .samples = 4});
    return weighted_sum(dropout(dropout(x, 0.25), 0.5)) + sum(dropout(x, 0));
  };
  check_gradients(function, {x});
}

TEST_F(GradientCheck, Rotary) {
  const Tensor angles = values({6, 2}, 43, 0, 3);
  std::vector<float> cosine;
  std::vector<float> sine;
  for (const double angle : angles.to_vector()) {
    cosine.push_back(static_cast<float>(std::cos(angle)));
    sine.push_back(static_cast<float>(std::sin(angle)));
  }
  const Tensor c = constant(cosine, {6, 2});
  const Tensor s = constant(sine, {6, 2});
  const Tensor x = leaf({2, 3, 8}, 44);
  // The tables are fp32 and thus only nearly orthogonal; the inverse rotation is still the
  // gradient.
  check_gradients([&] { return weighted_sum(rotary(x, 2, c, s)); }, {x});
  check_gradients([&] { return weighted_sum(rotary(x, 2, c, s, 3)); }, {x});
}

struct AttentionCase {
  std::int64_t heads, key_heads, head_dim, query_length, key_length;
  bool causal;
  double dropout;
  bool masked;
};

TEST_F(GradientCheck, Attention) {
  manual_seed(3);
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 4, 3, 3, false, 0, false}, AttentionCase{2, 2, 3, 5, 5, true, 0, false},
        AttentionCase{4, 2, 2, 3, 6, true, 0, false}, AttentionCase{3, 1, 4, 4, 2, false, 0, true},
        AttentionCase{2, 1, 4, 5, 5, true, 0.3, true}}) {
    SCOPED_TRACE(c.heads * 100 + c.key_length);
    const Tensor q = leaf({2, c.query_length, c.heads * c.head_dim}, 45, -2, 2);
    const Tensor k = leaf({2, c.key_length, c.key_heads * c.head_dim}, 46, -2, 2);
    const Tensor v = leaf({2, c.key_length, c.key_heads * c.head_dim}, 47);
    AttentionOptions options{
        .heads = c.heads, .key_heads = c.key_heads, .causal = c.causal, .dropout = c.dropout};
    if (c.masked) {
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(2 * c.key_length), 1);
      mask[1] = 0;
      mask.back() = 0;
      options.key_mask = constant(mask, {2, c.key_length});
    }
    const auto function = [&] {
      begin_batch({.step = 5, .first_sample = 1, .samples = 2});
      return weighted_sum(attention(q, k, v, options));
    };
    check_gradients(function, {q, k, v});
  }
}

TEST_F(GradientCheck, AttentionWithWindowDocumentsAndCap) {
  manual_seed(3);
  const Tensor starts =
      document_starts(Tensor::from(std::vector<std::int64_t>{0, 0, 0, 1, 1, 5, 5, 5, 5, 6}, {2, 5}),
                      default_device());
  const Tensor qkv = leaf({2, 5, 6 * 3}, 50, -2, 2);
  for (int options = 1; options < 8; ++options) {
    SCOPED_TRACE(options);
    AttentionOptions with{.heads = 4, .key_heads = 1, .causal = true, .dropout = 0.2};
    if ((options & 1) != 0) with.window = 2;
    if ((options & 2) != 0) with.document_starts = starts;
    if ((options & 4) != 0) with.soft_cap = 0.8;
    const auto function = [&] {
      begin_batch({.step = 5, .first_sample = 1, .samples = 2});
      return weighted_sum(packed_attention(qkv, with));
    };
    check_gradients(function, {qkv});
  }
}

TEST_F(GradientCheck, AttentionWithSinksAndInParts) {
  const Tensor q = leaf({2, 3, 12}, 51, -2, 2), k = leaf({2, 5, 6}, 52, -2, 2),
               v = leaf({2, 5, 6}, 53), sinks = leaf({4}, 54, -2, 2);
  AttentionOptions options{.heads = 4, .key_heads = 2, .causal = true};
  // Only the sums, and both results.
  check_gradients(
      [&] { return weighted_sum(square(attention_parts(q, k, v, options).log_sum_exp)); }, {q, k});
  check_gradients(
      [&] {
        const AttentionParts parts = attention_parts(q, k, v, options);
        return weighted_sum(parts.out) + weighted_sum(square(parts.log_sum_exp));
      },
      {q, k, v});
  options.sinks = sinks;
  check_gradients([&] { return weighted_sum(attention(q, k, v, options)); }, {q, k, v, sinks});
  const Tensor qkv = leaf({2, 4, 24}, 55, -2, 2);
  check_gradients([&] { return weighted_sum(packed_attention(qkv, options)); }, {qkv, sinks});
}

TEST_F(GradientCheck, AttentionWithBiasAndOtherWidths) {
  manual_seed(3);
  const Tensor q = leaf({2, 4, 12}, 61, -2, 2), k = leaf({2, 5, 6}, 62, -2, 2),
               v = leaf({2, 5, 10}, 63);
  for (const Shape& shape : {Shape{4, 5}, Shape{4, 4, 5}, Shape{2, 1, 4, 5}, Shape{2, 4, 4, 5}}) {
    SCOPED_TRACE(shape.to_string());
    const Tensor bias = leaf(shape, 64, -1, 1);
    AttentionOptions options{.heads = 4, .key_heads = 2, .causal = true, .dropout = 0.2};
    if (shape.dimensions() == 3) {
      options.window = 2;
      options.soft_cap = 0.9;
    }
    options.bias = bias;
    const auto function = [&] {
      begin_batch({.step = 5, .first_sample = 1, .samples = 2});
      const AttentionParts parts = attention_parts(q, k, v, options);
      return weighted_sum(parts.out) + weighted_sum(square(parts.log_sum_exp));
    };
    check_gradients(function, {q, k, v, bias});
  }
  const Tensor qkv = leaf({2, 4, 24}, 65, -2, 2), bias = leaf({4, 4, 4}, 66);
  const AttentionOptions options{.heads = 4, .key_heads = 2, .sinks = leaf({4}, 67), .bias = bias};
  check_gradients([&] { return weighted_sum(packed_attention(qkv, options)); },
                  {qkv, bias, options.sinks});
}

// The gradient of a log-sum-exp of -inf counts for nothing, even if it is NaN.
TEST_F(GradientCheck, AttentionInPartsOfRowsThatSeeNothing) {
  const Tensor x = leaf({2, 3, 4}, 56);
  const AttentionOptions options{
      .heads = 2, .key_mask = constant(std::vector<std::uint8_t>{1, 1, 0, 0, 0, 0}, {2, 3})};
  const auto function = [&] {
    const AttentionParts parts = attention_parts(x, x, x, options);
    const Tensor shares = exp(parts.log_sum_exp - logsumexp(parts.log_sum_exp, {1}, true));
    return weighted_sum(parts.out) + weighted_sum(narrow(shares, 0, 0, 1));
  };
  check_gradients(function, {x});
}

TEST_F(GradientCheck, AttentionOfRowsThatSeeNothing) {
  const Tensor x = leaf({2, 3, 4}, 48);
  const Tensor mask = constant(std::vector<std::uint8_t>{0, 1, 1, 0, 0, 0}, {2, 3});
  const AttentionOptions options{.heads = 2, .causal = true, .key_mask = mask};
  check_gradients([&] { return weighted_sum(attention(x, x, x, options)); }, {x});
}

TEST_F(GradientCheck, PackedAttention) {
  manual_seed(3);
  for (const std::int64_t key_heads : {1, 2, 4}) {
    for (const double dropout : {0.0, 0.3}) {
      const Tensor qkv = leaf({2, 5, (4 + 2 * key_heads) * 3}, 49, -2, 2);
      const AttentionOptions options{
          .heads = 4, .key_heads = key_heads, .causal = true, .scale = 0.4, .dropout = dropout};
      const auto function = [&] {
        begin_batch({.step = 6, .first_sample = 0, .samples = 2});
        return weighted_sum(packed_attention(qkv, options));
      };
      check_gradients(function, {qkv});
    }
  }
}

// Consecutive sequences of these lengths.
inline Sequences sequences_of(const std::vector<std::int32_t>& lengths, std::int64_t capacity) {
  std::vector<std::int32_t> starts, slots;
  Sequences sequences;
  for (const std::int32_t length : lengths) {
    const auto first =
        static_cast<std::int32_t>(static_cast<std::int64_t>(starts.size()) * capacity);
    starts.push_back(static_cast<std::int32_t>(slots.size()));
    for (std::int32_t t = 0; t < length; ++t) slots.push_back(first + t);
    sequences.longest = std::max<std::int64_t>(sequences.longest, length);
  }
  const auto count = static_cast<std::int64_t>(lengths.size());
  sequences.starts = constant(starts, {count});
  sequences.lengths = constant(lengths, {count});
  sequences.slots = constant(slots, {static_cast<std::int64_t>(slots.size())});
  sequences.capacity = capacity;
  return sequences;
}

TEST_F(GradientCheck, SequenceAttention) {
  manual_seed(3);
  const Sequences sequences = sequences_of({3, 1, 6}, 7);
  for (const std::int64_t head_dim : {3, 20}) {
    for (const double dropout : {0.0, 0.3}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(head_dim * 10 + (biased ? 1 : 0));
        const Tensor q = leaf({10, 2 * head_dim}, 70, -1, 1);
        const Tensor k = leaf({10, 2 * head_dim}, 71, -1, 1);
        const Tensor v = leaf({10, 2 * head_dim}, 72);
        const Tensor bias = leaf({13, 2}, 73);
        SequenceAttentionOptions options{.heads = 2, .dropout = dropout};
        if (biased) options.relative_bias = bias;
        const auto function = [&] {
          begin_batch({.step = 5, .first_sample = 1, .samples = 3});
          const Tensor out = weighted_sum(sequence_attention(q, k, v, sequences, options));
          return biased ? out : out + sum(bias);
        };
        check_gradients(function, {q, k, v, bias});
      }
    }
  }
}

TEST_F(GradientCheck, SequenceAttentionWithAWindow) {
  const Sequences sequences = sequences_of({3, 1, 6}, 7);
  const Tensor q = leaf({10, 6}, 76, -1, 1), k = leaf({10, 6}, 77, -1, 1), v = leaf({10, 6}, 78);
  const SequenceAttentionOptions options{.heads = 2, .window = 2};
  check_gradients([&] { return weighted_sum(sequence_attention(q, k, v, sequences, options)); },
                  {q, k, v});
}

TEST_F(GradientCheck, SequenceDropoutWithAFixedKey) {
  manual_seed(3);
  const Sequences sequences = sequences_of({3, 1, 2}, 5);
  const Tensor x = leaf({6, 9}, 74);
  const auto function = [&] {
    begin_batch({.step = 5, .first_sample = 2, .samples = 3});
    return weighted_sum(sequence_dropout(x, 0.4, sequences)) +
           sum(sequence_dropout(x, 0, sequences));
  };
  check_gradients(function, {x});
}

TEST_F(GradientCheck, Pooling) {
  const Sequences sequences = sequences_of({4, 1, 2}, 5);
  const Tensor x = leaf({7, 5}, 75);
  for (const PoolingMode mode :
       {PoolingMode::mean, PoolingMode::cls, PoolingMode::max, PoolingMode::mean_sqrt_length}) {
    check_gradients([&] { return weighted_sum(pool_sequences(x, sequences, {mode})); }, {x});
  }
  const auto joined = [&] {
    return weighted_sum(pool_sequences(
        x, sequences, {PoolingMode::cls, PoolingMode::max, PoolingMode::mean, PoolingMode::cls}));
  };
  check_gradients(joined, {x});
}

TEST_F(GradientCheck, NormalizedRows) {
  const Tensor x = leaf({3, 2, 5}, 76);
  check_gradients([&] { return weighted_sum(normalize_rows(x)); }, {x});
  check_gradients([&] { return weighted_sum(normalize_rows(x, 100.0)); }, {x});
}

TEST_F(GradientCheck, CrossEntropyWithIgnoredTargets) {
  const Tensor logits = leaf({2, 3, 7}, 50, -3, 3);
  const Tensor targets = constant(std::vector<std::int32_t>{0, 6, -100, 3, 3, -100}, {2, 3});
  check_gradients([&] { return cross_entropy(logits, targets); }, {logits});
  // The gradient overwrites logits that have no other user.
  check_gradients([&] { return cross_entropy(logits * 2.0, targets) * 3.0; }, {logits});
  const Tensor none = constant(std::vector<std::int64_t>(6, -100), {2, 3});
  check_gradients([&] { return cross_entropy(logits, none) + sum(logits); }, {logits});
}

// Within one block of rows and columns, and over several of each; a vocabulary whose last block is
// narrow.
TEST_F(GradientCheck, LinearCrossEntropy) {
  const Tensor few = constant(std::vector<std::int32_t>{0, 6, -100, 3, 3, -100}, {2, 3});
  const Tensor x = leaf({2, 3, 4}, 60, -2, 2);
  const Tensor weight = leaf({7, 4}, 61, -2, 2);
  check_gradients([&] { return linear_cross_entropy(x, weight, few); }, {x, weight});
  // With a table that is also used elsewhere, another seed, and other terms.
  const Tensor rows = constant(std::vector<std::int32_t>{0, 6, 1, 3, 3, 5}, {2, 3});
  check_gradients(
      [&] {
        const Tensor h = x + embedding(rows, weight);
        return linear_cross_entropy(h, weight, few) * 0.3 + weighted_sum(linear(h, weight));
      },
      {x, weight});
  const Tensor none = constant(std::vector<std::int64_t>(6, -100), {2, 3});
  check_gradients([&] { return linear_cross_entropy(x, weight, none) + sum(x) + sum(weight); },
                  {x, weight});
}

TEST_F(GradientCheck, LinearCrossEntropyOfManyRowsAndAWideVocabulary) {
  constexpr std::int64_t rows = 1030, vocabulary = 2051;
  std::vector<std::int64_t> targets(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    targets[static_cast<std::size_t>(r)] = r % 5 == 4 ? -1 : r * 2 % vocabulary;
  }
  const Tensor x = leaf({rows, 2}, 62, -2, 2);
  const Tensor weight = leaf({vocabulary, 2}, 63, -2, 2);
  const Tensor ids = constant(targets, {rows});
  // An emulated GPU takes a second for each value of this function: two elements of each tensor.
  const std::size_t elements = checked_elements() == 0 ? 6 : 2;
  // The loss is a mean of many: gradients are as small as its rounding is next to its steps.
  check_gradients([&] { return linear_cross_entropy(x, weight, ids, {.ignore = -1}) * 1000.0; },
                  {x, weight}, {.step = 1e-4, .tolerance = 1e-6, .max_elements = elements});
}

TEST_F(GradientCheck, OneTensorOnManyPaths) {
  const Tensor x = leaf({3, 4}, 51);
  const Tensor weight = leaf({4, 4}, 52);
  const auto function = [&] {
    const Tensor h = linear(x, weight);
    const Tensor a = reshape(h, {4, 3});
    const Tensor b = add(h, h);                // one gradient passed on twice
    const Tensor c = linear(gelu(h), weight);  // a gradient added in place
    return weighted_sum(a) + weighted_sum(b * c) + mean(square(linear(c, weight)));
  };
  check_gradients(function, {x, weight});
}

TEST_F(GradientCheck, Recompute) {
  const Tensor x = leaf({3, 4}, 54);
  const Tensor weight = leaf({4, 4}, 55);
  const auto function = [&] {
    const Tensor h = linear(x, weight);
    const auto part = [&weight](const Tensor& in) {
      return linear(gelu(linear(in, weight)), weight);
    };
    return weighted_sum(h + recompute(part, h) * x);
  };
  check_gradients(function, {x, weight});
}

TEST_F(GradientCheck, FindsAWrongGradient) {
  const Tensor x = leaf({3}, 53);
  const auto wrong = [&](double factor) {
    Tensor y = Tensor::empty({3}, float64);
    y.copy_from(x);
    autograd::record(Op::affine, {x}, {y},
                     [factor](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                       sink.add(0, affine(dout[0], factor));
                     });
    return weighted_sum(y);
  };
  check_gradients([&] { return wrong(1.0); }, {x});
  EXPECT_NONFATAL_FAILURE(check_gradients([&] { return wrong(1.00001); }, {x}), "tape");
}

// Last in the file, and thus the last to run.
TEST(GradientCheckCoverage, EveryOpWasReached) {
  const ::testing::UnitTest& program = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *program.GetTestSuite(i);
    if (std::string_view(suite.name()) == "GradientCheck" &&
        suite.test_to_run_count() != suite.total_test_count()) {
      GTEST_SKIP() << "only some of the checks were asked for";
    }
  }
  for (const Op op : all_ops) {
    EXPECT_TRUE(testing::checked_ops().contains(op)) << name_of(op) << " has no gradient check";
  }
}

}  // namespace tessera::gradient_cases
