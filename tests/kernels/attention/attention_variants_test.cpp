// Attention with a sliding window, with packed documents and with a soft cap of the scores,
// compared with the formula: every type and option, on both sides of the tiles, and for one query.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
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
using attention_problem::Values;

class AttentionVariantsTest : public ::testing::Test {
 protected:
  void SetUp() override { set_compute_threads(1); }
};

TEST_F(AttentionVariantsTest, EveryTypeAndOption) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    for (int options = 1; options < 32; ++options) {
      if ((options & 7) == 0) continue;
      expect_right({.heads = 2,
                    .key_heads = 1,
                    .queries = 37,
                    .keys = 37,
                    .causal = true,
                    .mask = (options & 8) != 0,
                    .dropout = (options & 16) != 0 ? 0.3f : 0.0f,
                    .dtype = dtype,
                    .window = (options & 1) != 0 ? 6 : 0,
                    .document = (options & 2) != 0 ? 9 : 0,
                    .soft_cap = (options & 4) != 0 ? 1.5f : 0.0f});
    }
  }
}

TEST_F(AttentionVariantsTest, LengthsOnBothSidesOfTheTiles) {
  for (const DType dtype : {float32, bfloat16}) {
    for (const std::int64_t window : {1, 2, 63, 64, 65, 300}) {
      for (const auto& [queries, keys] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {1, 1}, {70, 70}, {3, 530}, {90, 20}, {130, 600}, {257, 257}}) {
        expect_right({.batch = 1,
                      .heads = 1,
                      .key_heads = 1,
                      .queries = queries,
                      .keys = keys,
                      .causal = true,
                      .dtype = dtype,
                      .window = window});
      }
    }
    for (const std::int64_t document : {1, 63, 64, 200}) {
      expect_right({.batch = 1,
                    .heads = 1,
                    .key_heads = 1,
                    .queries = 530,
                    .keys = 530,
                    .causal = true,
                    .dtype = dtype,
                    .document = document});
    }
  }
}

TEST_F(AttentionVariantsTest, CapsScoresWithoutACausalMask) {
  expect_right({.queries = 33, .keys = 70, .mask = true, .soft_cap = 0.5f});
}

// Tiles that no query sees are not read: NaNs outside the window stay there.
TEST_F(AttentionVariantsTest, KeysOutsideTheWindowAreNotRead) {
  Problem problem({.batch = 1,
                   .heads = 1,
                   .key_heads = 1,
                   .queries = 64,
                   .keys = 2000,
                   .causal = true,
                   .window = 10});
  const std::int64_t first_seen = 2000 - 64 - 9;
  const Results before = problem.run();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  std::fill_n(problem.k.begin(), first_seen * problem.k_stride(), nan);
  std::fill_n(problem.v.begin(), first_seen * problem.v_stride(), nan);
  const Results after = problem.run();
  EXPECT_EQ(before.out, after.out);
  EXPECT_EQ(before.dq, after.dq);
  EXPECT_EQ(before.dk, after.dk);
  EXPECT_EQ(before.dv, after.dv);
}

TEST_F(AttentionVariantsTest, DocumentsDoNotSeeEachOther) {
  const Case c{
      .batch = 1, .queries = 150, .keys = 150, .causal = true, .dtype = float64, .document = 40};
  Problem problem(c);
  const Results before = problem.run();
  // The second document has the positions 40 to 80.
  for (std::int64_t i = 40 * problem.v_stride(); i < 81 * problem.v_stride(); ++i) {
    problem.v[static_cast<std::size_t>(i)] += 1;
  }
  const Results after = problem.run();
  for (std::int64_t row = 0; row < 150; ++row) {
    const auto at = static_cast<std::size_t>(row * problem.out_stride());
    EXPECT_EQ(before.out[at] != after.out[at], row >= 40 && row < 81) << row;
  }
}

TEST_F(AttentionVariantsTest, ThreadsDoNotChangeABit) {
  const Problem problem({.batch = 3,
                         .heads = 4,
                         .key_heads = 2,
                         .queries = 100,
                         .keys = 100,
                         .causal = true,
                         .mask = true,
                         .dropout = 0.2f,
                         .window = 30,
                         .document = 50,
                         .soft_cap = 2});
  const Results one = problem.run();
  set_compute_threads(2);
  const Results two = problem.run();
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(one.dq, two.dq);
  EXPECT_EQ(one.dk, two.dk);
  EXPECT_EQ(one.dv, two.dv);
}

// The path for text generation, which does not request the log-sum-exps, and the blocked one.
TEST_F(AttentionVariantsTest, OneQueryAgreesWithTheBlocks) {
  for (const auto& [window, soft_cap] :
       std::vector<std::pair<std::int64_t, float>>{{1, 0.0f}, {8, 0.0f}, {0, 1.5f}, {40, 1.5f}}) {
    const Problem problem(
        {.queries = 1, .keys = 33, .causal = true, .window = window, .soft_cap = soft_cap});
    const std::vector<float> q(problem.q.begin(), problem.q.end());
    const std::vector<float> k(problem.k.begin(), problem.k.end());
    const std::vector<float> v(problem.v.begin(), problem.v.end());
    std::vector<float> out(problem.dout.size(), static_cast<float>(Problem::kUntouched));
    cpu::attention_forward({problem.shape(), q.data(), k.data(), v.data(), out.data(), nullptr});
    const Values got(out.begin(), out.end());
    // Rows are copied as a whole, with the gap behind them.
    const Values expected = problem.formula(float64).out;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], 1e-5) << window << " " << soft_cap << " " << i;
    }
  }
}

TEST_F(AttentionVariantsTest, MisuseSaysWhatIsWrong) {
  const auto expect_refused = [](const Problem& problem, AttentionShape shape, const char* what) {
    try {
      cpu::attention_forward({shape, problem.q.data(), problem.k.data(), problem.v.data(),
                              const_cast<double*>(problem.dout.data()), nullptr});
      FAIL() << what;
    } catch (const std::logic_error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  Problem problem({.causal = true, .dtype = float64, .document = 5});
  AttentionShape shape = problem.shape();
  shape.window = -1;
  expect_refused(problem, shape, "a window must be positive and causal");
  shape = problem.shape();
  shape.soft_cap = std::numeric_limits<float>::quiet_NaN();
  expect_refused(problem, shape, "the soft cap must be positive");
  shape = problem.shape();
  shape.causal = false;
  expect_refused(problem, shape, "documents must be causal");
  problem.document_starts[7] = 2;
  expect_refused(problem, problem.shape(), "document_starts must not decrease");
}

}  // namespace
}  // namespace tessera::kernels
