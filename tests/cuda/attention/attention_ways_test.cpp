// Attention by cuDNN on a real GPU, compared with the own kernels: every kind of call that cuDNN
// covers, and the same bits each time. Without cuDNN the tests are skipped.
#include "base/error.h"
#include "cuda/attention/attention_near.h"
#include "cuda/attention/attention_runs.h"
#include "cuda/attention/attention_testing.h"

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

void expect_near_own(const AttentionProblem& problem) {
  SCOPED_TRACE(problem.text());
  const AttentionResults own = run_on_device(problem, AttentionRun::backward);
  try {
    expect_near(problem.dtype(),
                run_on_device(problem, AttentionRun::backward, AttentionWay::cudnn), own);
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
