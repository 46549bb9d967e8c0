// Attention with an additive bias, and with values of another width than keys, compared with the
// formula: every type and option, on both sides of the tiles, and for one query.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attention_problem.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using attention_problem::Case;
using attention_problem::expect_right;
using attention_problem::Problem;
using attention_problem::Results;

class AttentionBiasTest : public ::testing::Test {
 protected:
  void SetUp() override { set_compute_threads(1); }
};

constexpr std::pair<std::int64_t, std::int64_t> broadcasts[] = {{1, 1}, {1, 4}, {3, 1}, {3, 4}};

TEST_F(AttentionBiasTest, EveryTypeBroadcastAndOption) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    for (const auto& [samples, heads] : broadcasts) {
      for (int options = 0; options < 32; ++options) {
        if ((options & 1) == 0 && (options & 6) != 0) continue;  // these need the causal mask
        if (dtype != float32 && options != 0 && options != 31) continue;
        expect_right({.batch = 3,
                      .heads = 4,
                      .key_heads = 2,
                      .head_dim = 16,
                      .queries = 21,
                      .keys = 21,
                      .causal = (options & 1) != 0,
                      .mask = (options & 8) != 0,
                      .dropout = (options & 16) != 0 ? 0.3f : 0.0f,
                      .dtype = dtype,
                      .window = (options & 2) != 0 ? 6 : 0,
                      .document = (options & 4) != 0 ? 9 : 0,
                      .soft_cap = (options & 8) != 0 ? 1.5f : 0.0f,
                      .bias_samples = samples,
                      .bias_heads = heads});
      }
    }
  }
}

TEST_F(AttentionBiasTest, LengthsOnBothSidesOfTheTiles) {
  for (const auto& [queries, keys] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {65, 257}, {3, 530}, {130, 20}}) {
    for (const bool causal : {false, true}) {
      expect_right({.batch = 2,
                    .heads = 2,
                    .key_heads = 1,
                    .queries = queries,
                    .keys = keys,
                    .causal = causal,
                    .bias_samples = 1,
                    .bias_heads = 2});
    }
  }
}

TEST_F(AttentionBiasTest, ThreadsDoNotChangeABit) {
  for (const auto& [samples, heads] : broadcasts) {
    const Problem problem({.batch = 3,
                           .heads = 4,
                           .key_heads = 2,
                           .queries = 100,
                           .keys = 100,
                           .causal = true,
                           .dropout = 0.2f,
                           .bias_samples = samples,
                           .bias_heads = heads});
    set_compute_threads(1);
    const Results one = problem.run();
    set_compute_threads(3);
    const Results three = problem.run();
    EXPECT_EQ(one.out, three.out);
    EXPECT_EQ(one.dq, three.dq);
    EXPECT_EQ(one.dbias, three.dbias);
  }
}

TEST_F(AttentionBiasTest, ValuesOfAnotherWidth) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    for (const auto& [dim, value_dim] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{24, 16}, {16, 40}, {5, 3}, {1, 2}}) {
      for (const bool causal : {false, true}) {
        expect_right({.heads = 4,
                      .key_heads = 2,
                      .head_dim = dim,
                      .queries = 70,
                      .keys = 70,
                      .causal = causal,
                      .mask = !causal,
                      .dropout = causal ? 0.2f : 0.0f,
                      .dtype = dtype,
                      .window = causal ? 20 : 0,
                      .document = causal ? 33 : 0,
                      .value_dim = value_dim,
                      .bias_samples = causal ? 0 : 1,
                      .bias_heads = causal ? 0 : 4});
      }
    }
  }
}

// The path for text generation: with values of another width, a bias, and the log-sum-exps.
TEST_F(AttentionBiasTest, OneQueryAgreesWithTheFormula) {
  for (const std::int64_t window : {0, 8}) {
    for (const auto& [samples, heads] : broadcasts) {
      const Case c{.batch = 3,
                   .heads = 4,
                   .key_heads = 2,
                   .head_dim = 24,
                   .queries = 1,
                   .keys = 33,
                   .causal = true,
                   .dtype = float64,
                   .window = window,
                   .soft_cap = 1.5f,
                   .value_dim = 16,
                   .bias_samples = samples,
                   .bias_heads = heads};
      const Problem problem(c);
      const Results exact = problem.formula(float64);
      std::vector<double> out(problem.dout.size(), Problem::kUntouched);
      std::vector<double> log_sum_exp(exact.log_sum_exp.size());
      AttentionShape shape = problem.shape();
      shape.bias = problem.bias.data();
      cpu::attention_forward({.shape = shape,
                              .q = problem.q.data(),
                              .k = problem.k.data(),
                              .v = problem.v.data(),
                              .out = out.data(),
                              .log_sum_exp = log_sum_exp.data(),
                              .inference = true});
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], exact.out[i], 1e-12) << i;
      for (std::size_t i = 0; i < log_sum_exp.size(); ++i) {
        if (log_sum_exp[i] == exact.log_sum_exp[i]) continue;  // -inf
        ASSERT_NEAR(log_sum_exp[i], exact.log_sum_exp[i], 1e-12) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
