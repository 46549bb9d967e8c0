// Attention backward on the GPU: every type, with and without a causal mask, on tensor cores and on
// the general path.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "cuda/attention/attention_runs.h"
#include "cuda/attention/attention_testing.h"
#include "kernels/registry.h"

namespace tessera::testing {
namespace {

using Arrays = std::vector<std::vector<double>>;
using kernels::cuda::AttentionWay;

Arrays gradients_of(const AttentionProblem& problem, AttentionWay way = AttentionWay::own) {
  return run_on_device(problem, AttentionRun::backward, way).gradients;
}

void expect_backward_by(AttentionWay way, const AttentionProblem& problem) {
  SCOPED_TRACE(problem.text() + (way == AttentionWay::own ? ", own" : ", cuDNN"));
  const DType dtype = problem.dtype();
  const Arrays exact = problem.formula(float64, float64, true).gradients;
  const Arrays low =
      size_of(dtype) == 2
          ? problem.formula(dtype, problem.rounds_operands() ? dtype : float64, true).gradients
          : run_on_cpu(problem, AttentionRun::backward).gradients;
  const Arrays device = gradients_of(problem, way);
  const std::vector<std::string> names = problem.inputs.size() == 1
                                             ? std::vector<std::string>{"dqkv", "dbias"}
                                             : std::vector<std::string>{"dq", "dk", "dv", "dbias"};
  for (std::size_t i = 0; i < device.size(); ++i) {
    const DType type = i == problem.inputs.size() ? problem.statistic() : dtype;
    expect_within_bound("attention_backward", names[i], type, device[i], low[i], exact[i]);
  }
}

void expect_backward(const AttentionProblem& problem) {
  for (const AttentionWay way : attention_ways()) expect_backward_by(way, problem);
}

class AttentionBackwardTest : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionBackwardTest, EveryShape) {
  for (const AttentionCase& sizes : attention_cases) {
    for (const bool causal : {false, true}) expect_backward({sizes, causal, GetParam()});
  }
}

TEST_P(AttentionBackwardTest, WindowsDocumentsAndCaps) {
  for (const AttentionCase& sizes : attention_variants) expect_backward({sizes, true, GetParam()});
}

TEST_P(AttentionBackwardTest, WidthsOfValuesAndBiases) {
  for (const AttentionCase& sizes : attention_wider) {
    for (const bool causal : {false, true}) expect_backward({sizes, causal, GetParam()});
  }
  for (const AttentionCase& sizes : attention_wider_variants) {
    expect_backward({sizes, true, GetParam()});
  }
}

// Tiles that no query sees are not read: NaNs in the keys and values before them stay there.
TEST_P(AttentionBackwardTest, TilesOutsideAWindowAreSkipped) {
  const AttentionCase sizes{.about = "window at the end",
                            .heads = 1,
                            .key_heads = 1,
                            .queries = 40,
                            .keys = 400,
                            .window = 20};
  AttentionProblem problem(sizes, true, GetParam());
  const AttentionResults before = run_on_device(problem, AttentionRun::backward);
  for (const AttentionProblem::Tensor& tensor : {problem.k(), problem.v()}) {
    std::fill_n(problem.inputs[tensor.array].begin(), 320 * tensor.stride,
                std::numeric_limits<double>::quiet_NaN());
  }
  const AttentionResults after = run_on_device(problem, AttentionRun::backward);
  expect_equal("attention_forward", "out", GetParam(), after.out, before.out);
  for (std::size_t i = 0; i < before.gradients.size(); ++i) {
    expect_equal("attention_backward", "gradients", GetParam(), after.gradients[i],
                 before.gradients[i]);
  }
}

// 100 queries and 30 keys: with a causal mask the first 70 queries see no key.
TEST_P(AttentionBackwardTest, RowsThatSeeNothingHaveNoGradient) {
  const AttentionProblem problem(
      {.about = "nothing seen", .heads = 1, .key_heads = 1, .queries = 100, .keys = 30, .batch = 1},
      true, GetParam());
  const std::vector<double> dq = gradients_of(problem)[0];
  const auto stride = static_cast<std::size_t>(problem.q().stride);
  for (std::size_t i = 0; i < 70; ++i) EXPECT_EQ(dq[i * stride], 0) << i;
  EXPECT_NE(dq[71 * stride], 0);
}

TEST_P(AttentionBackwardTest, WithoutQueriesOrKeysTheOthersGradientsAreZero) {
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{0, 40}, {40, 0}}) {
    const AttentionProblem problem({.about = "one side", .queries = queries, .keys = keys}, true,
                                   GetParam());
    const Arrays gradients = gradients_of(problem);
    const std::size_t first = queries == 0 ? 1 : 0, last = queries == 0 ? 3 : 1;
    for (std::size_t i = first; i < last; ++i) EXPECT_EQ(gradients[i][0], 0);
  }
}

TEST_P(AttentionBackwardTest, SameBitsEachTime) {
  const AttentionProblem problem({.about = "twice",
                                  .key_heads = 1,
                                  .head_dim = 32,
                                  .queries = 70,
                                  .keys = 70,
                                  .mask = true,
                                  .dropout = 0.2f},
                                 true, GetParam());
  const Arrays once = gradients_of(problem), again = gradients_of(problem);
  for (std::size_t i = 0; i < once.size(); ++i) {
    expect_equal("attention_backward", "gradients", GetParam(), again[i], once[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionBackwardTest, ::testing::ValuesIn(floating_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(AttentionBackward, NeedsTheLogSumExp) {
  const AttentionProblem problem({.about = "misuse"}, false, float32);
  TestContext context;
  std::byte nothing{};
  const std::vector<void*> arrays(problem.inputs.size(), &nothing);
  AttentionPlaces places;
  places.out = &nothing;
  places.dout = &nothing;
  places.inputs = places.gradients = arrays;
  EXPECT_THROW(
      kernels::cuda::attention_backward(backward_arguments(problem, places), context.queue()),
      std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
