// Attention by cuDNN on a real GPU, compared with the own kernels: every kind of call that cuDNN
// covers, the same bits each time, and the same bits for every division of the work. Without cuDNN
// the tests are skipped.
#include <cmath>

#include "base/error.h"
#include "cuda/attention/attention_runs.h"
#include "cuda/attention/attention_testing.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"

namespace tessera::testing {
namespace {

using kernels::cuda::AttentionWay;
using kernels::cuda::cudnn_library;

constexpr AttentionCase covered_cases[] = {
    {.about = "GPT-2",
     .heads = 12,
     .key_heads = 12,
     .queries = 1024,
     .keys = 1024,
     .packed = true,
     .padding = 0,
     .batch = 2},
    {.about = "grouped keys",
     .heads = 8,
     .key_heads = 2,
     .head_dim = 128,
     .queries = 512,
     .keys = 512,
     .batch = 2},
    {.about = "one key head, packed",
     .heads = 6,
     .key_heads = 1,
     .head_dim = 128,
     .queries = 256,
     .keys = 256,
     .packed = true,
     .padding = 0},
    {.about = "length of no tile", .heads = 3, .key_heads = 3, .queries = 1000, .keys = 1000},
    {.about = "short", .head_dim = 128, .queries = 40, .keys = 40, .batch = 3},
    {.about = "head of 96", .head_dim = 96, .queries = 300, .keys = 300},
};

bool have_cudnn() {
  return cudnn_library().functions != nullptr;
}

// The root of the mean square of the difference, divided by that of the expected values.
double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == AttentionProblem::untouched) {
      EXPECT_EQ(got[i], AttentionProblem::untouched) << "written between rows, element " << i;
      continue;
    }
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  return std::sqrt(difference / square);
}

void expect_near_own(const AttentionProblem& problem) {
  SCOPED_TRACE(problem.text());
  const double bound = problem.dtype() == bfloat16 ? 1e-2 : 2e-3;
  const AttentionResults own = run_on_device(problem, AttentionRun::backward);
  try {
    const AttentionResults got =
        run_on_device(problem, AttentionRun::backward, AttentionWay::cudnn);
    EXPECT_LT(relative_error(got.out, own.out), bound);
    EXPECT_LT(relative_error(got.log_sum_exp, own.log_sum_exp), 1e-5);
    for (std::size_t i = 0; i < own.gradients.size(); ++i) {
      EXPECT_LT(relative_error(got.gradients[i], own.gradients[i]), bound) << "gradient " << i;
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(AttentionWays, CudnnAgreesWithTheOwnKernels) {
  if (!have_cudnn()) GTEST_SKIP() << cudnn_library().problem;
  for (const AttentionCase& sizes : covered_cases) {
    for (const DType dtype : {bfloat16, float16}) {
      for (const bool causal : {true, false}) expect_near_own({sizes, causal, dtype});
    }
  }
}

TEST(AttentionWays, CudnnGivesTheSameBitsEachTime) {
  if (!have_cudnn()) GTEST_SKIP() << cudnn_library().problem;
  for (const AttentionCase& sizes : covered_cases) {
    const AttentionProblem problem(sizes, true, bfloat16);
    SCOPED_TRACE(problem.text());
    const auto once = run_on_device(problem, AttentionRun::backward, AttentionWay::cudnn);
    const auto again = run_on_device(problem, AttentionRun::backward, AttentionWay::cudnn);
    EXPECT_EQ(once.out, again.out);
    EXPECT_EQ(once.log_sum_exp, again.log_sum_exp);
    EXPECT_EQ(once.gradients, again.gradients);
  }
}

}  // namespace
}  // namespace tessera::testing
