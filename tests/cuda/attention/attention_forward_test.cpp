// Attention forward on the GPU: every type, with and without a causal mask, on tensor cores and on
// the general path.
#include <cmath>
#include <limits>
#include <stdexcept>

#include "cuda/attention/attention_runs.h"
#include "cuda/attention/attention_testing.h"
#include "kernels/registry.h"

namespace tessera::testing {
namespace {

using kernels::cuda::AttentionWay;

AttentionResults forward(const AttentionProblem& problem, AttentionWay way = AttentionWay::own) {
  return run_on_device(problem, AttentionRun::forward, way);
}

void expect_forward_by(AttentionWay way, const AttentionProblem& problem) {
  SCOPED_TRACE(problem.text() + (way == AttentionWay::own ? ", own" : ", cuDNN"));
  const DType dtype = problem.dtype();
  const AttentionResults exact = problem.formula(float64, float64, false);
  const AttentionResults cpu = run_on_cpu(problem, AttentionRun::forward);
  const AttentionResults device = forward(problem, way);
  const std::vector<double> low =
      size_of(dtype) == 2
          ? problem.formula(dtype, problem.rounds_operands() ? dtype : float64, false).out
          : cpu.out;
  expect_within_bound("attention_forward", "out", dtype, device.out, low, exact.out);
  expect_within_bound("attention_forward", "log_sum_exp", problem.statistic(), device.log_sum_exp,
                      cpu.log_sum_exp, exact.log_sum_exp);
}

void expect_forward(const AttentionProblem& problem) {
  for (const AttentionWay way : attention_ways()) expect_forward_by(way, problem);
}

class AttentionForwardTest : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionForwardTest, EveryShape) {
  for (const AttentionCase& sizes : attention_cases) {
    for (const bool causal : {false, true}) expect_forward({sizes, causal, GetParam()});
  }
}

TEST_P(AttentionForwardTest, WindowsDocumentsAndCaps) {
  for (const AttentionCase& sizes : attention_variants) expect_forward({sizes, true, GetParam()});
}

TEST_P(AttentionForwardTest, WidthsOfValuesAndBiases) {
  for (const AttentionCase& sizes : attention_wider) {
    for (const bool causal : {false, true}) expect_forward({sizes, causal, GetParam()});
  }
  for (const AttentionCase& sizes : attention_wider_variants) {
    expect_forward({sizes, true, GetParam()});
  }
}

TEST_P(AttentionForwardTest, LogSumExpIsOptional) {
  const AttentionProblem problem({.about = "no log_sum_exp"}, true, GetParam());
  const AttentionResults with = forward(problem);
  const AttentionResults without =
      run_on_device(problem, AttentionRun::forward_without_log_sum_exp);
  expect_equal("attention_forward", "out", GetParam(), without.out, with.out);
  for (const double value : without.log_sum_exp) EXPECT_EQ(value, AttentionProblem::untouched);
}

// 100 queries and 30 keys: with a causal mask the first 70 queries see no key.
TEST_P(AttentionForwardTest, RowsThatSeeNothingGiveZero) {
  const AttentionProblem problem(
      {.about = "nothing seen", .heads = 1, .key_heads = 1, .queries = 100, .keys = 30, .batch = 1},
      true, GetParam());
  const AttentionResults got = forward(problem);
  const auto stride = static_cast<std::size_t>(problem.shape(nullptr).out_stride);
  for (std::size_t i = 0; i < 70; ++i) {
    EXPECT_EQ(got.log_sum_exp[i], -std::numeric_limits<double>::infinity()) << i;
    EXPECT_EQ(got.out[i * stride], 0) << i;
  }
  EXPECT_NE(got.out[70 * stride], 0);
}

TEST_P(AttentionForwardTest, NoKeysAtAllGiveZero) {
  const AttentionProblem problem({.about = "no keys", .keys = 0}, false, GetParam());
  const AttentionResults got = forward(problem);
  for (const double value : got.log_sum_exp) {
    EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
  }
  for (const double value : got.out)
    EXPECT_TRUE(value == 0 || value == AttentionProblem::untouched);
  EXPECT_EQ(got.out[0], 0);
}

// With the unit matrix as values, an element of the output is the probability of one key: zero
// where it is dropped, and nowhere else.
TEST_P(AttentionForwardTest, DropsTheElementsOfTheGenerator) {
  const AttentionCase sizes{.about = "dropout, values of the unit matrix",
                            .head_dim = 64,
                            .queries = 70,
                            .keys = 63,
                            .dropout = 0.5f,
                            .deviation = 0.1};
  AttentionProblem problem(sizes, false, GetParam());
  std::vector<double>& v = problem.inputs[problem.v().array];
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto position = static_cast<std::int64_t>(i) / problem.v().stride;
    const auto column = static_cast<std::int64_t>(i) % problem.v().stride;
    v[i] = position % sizes.keys == column % sizes.head_dim ? 1 : 0;
  }
  const AttentionResults got = forward(problem);
  const std::int64_t stride = problem.shape(nullptr).out_stride;
  for (std::int64_t row = 0; row < sizes.batch * sizes.queries; ++row) {
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      for (std::int64_t j = 0; j < sizes.keys; ++j) {
        const double probability =
            got.out[static_cast<std::size_t>(row * stride + h * sizes.head_dim + j)];
        ASSERT_EQ(probability != 0,
                  problem.kept(row / sizes.queries, h, row % sizes.queries, j) != 0)
            << "sample " << row / sizes.queries << " head " << h << " query " << row % sizes.queries
            << " key " << j;
      }
    }
  }
}

TEST_P(AttentionForwardTest, NotANumberIsNotHidden) {
  AttentionProblem problem({.about = "NaN", .heads = 1, .key_heads = 1, .queries = 5, .keys = 5},
                           false, GetParam());
  problem.inputs[problem.q().array][0] = std::numeric_limits<double>::quiet_NaN();
  const AttentionResults got = forward(problem);
  EXPECT_TRUE(std::isnan(got.out[0]));
  EXPECT_TRUE(std::isnan(got.log_sum_exp[0]));
  EXPECT_FALSE(std::isnan(got.out[static_cast<std::size_t>(problem.shape(nullptr).out_stride)]));
}

TEST_P(AttentionForwardTest, SameBitsEachTime) {
  const AttentionProblem problem(
      {.about = "twice", .queries = 70, .keys = 70, .mask = true, .dropout = 0.2f}, true,
      GetParam());
  const AttentionResults once = forward(problem), again = forward(problem);
  expect_equal("attention_forward", "out", GetParam(), again.out, once.out);
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionForwardTest, ::testing::ValuesIn(floating_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(AttentionForward, MisuseNamesTheShape) {
  const AttentionProblem problem({.about = "misuse", .heads = 3}, false, float32);
  TestContext context;
  try {
    kernels::cuda::attention_forward({.shape = problem.shape(nullptr),
                                      .q = nullptr,
                                      .k = nullptr,
                                      .v = nullptr,
                                      .out = nullptr,
                                      .log_sum_exp = nullptr},
                                     context.queue());
    FAIL() << "accepted 3 heads over 2 key heads";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("heads 3, key heads 2"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::testing
