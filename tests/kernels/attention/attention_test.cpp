// Blocked attention compared with the textbook formula in double precision: every type, mask, head
// grouping and dropout, gradients included, and the same bits with any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attention_problem.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using namespace attention_problem;

// One thread unless a test says otherwise: on a busy machine two threads that wait for each other
// are slow.
class AttentionTest : public ::testing::Test {
 protected:
  void SetUp() override { set_compute_threads(1); }
};

TEST_F(AttentionTest, EveryTypeAndOption) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    for (int options = 0; options < 8; ++options) {
      expect_right({.heads = 4,
                    .key_heads = 2,
                    .queries = 37,
                    .keys = 37,
                    .causal = (options & 1) != 0,
                    .mask = (options & 2) != 0,
                    .dropout = (options & 4) != 0 ? 0.3f : 0.0f,
                    .dtype = dtype});
    }
  }
}

TEST_F(AttentionTest, LengthsOnBothSidesOfTheTiles) {
  for (const DType dtype : {float32, bfloat16}) {
    for (const auto& [queries, keys] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1},
                                                            {1, 70},
                                                            {70, 1},
                                                            {3, 17},
                                                            {64, 64},
                                                            {65, 63},
                                                            {128, 129},
                                                            {5, 530},
                                                            {130, 260}}) {
      for (const bool causal : {false, true}) {
        expect_right(
            {.batch = 1, .queries = queries, .keys = keys, .causal = causal, .dtype = dtype});
      }
    }
  }
}

TEST_F(AttentionTest, ManyTilesOfKeys) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    expect_right({.batch = 1,
                  .heads = 1,
                  .key_heads = 1,
                  .queries = 70,
                  .keys = 1100,
                  .causal = true,
                  .mask = true,
                  .dropout = 0.1f,
                  .dtype = dtype});
  }
}

TEST_F(AttentionTest, HeadSizes) {
  for (const std::int64_t dim : {8, 24, 40, 64, 80, 128, 256}) {
    for (const DType dtype : {float32, bfloat16, float16}) {
      expect_right(
          {.batch = 1, .head_dim = dim, .queries = 33, .keys = 33, .causal = true, .dtype = dtype});
    }
  }
}

TEST_F(AttentionTest, RowsThatSeeNothingGiveZeros) {
  const Case c{
      .batch = 1, .queries = 90, .keys = 20, .causal = true};  // the first 70 queries see no key
  const Problem problem(c);
  const Results got = problem.run();
  for (std::int64_t i = 0; i < 70; ++i) {
    EXPECT_EQ(got.log_sum_exp[static_cast<std::size_t>(i)],
              -std::numeric_limits<double>::infinity());
    EXPECT_EQ(got.out[static_cast<std::size_t>(i * problem.out_stride())], 0);
    EXPECT_EQ(got.dq[static_cast<std::size_t>(i * problem.q_stride())], 0);
  }
  for (const double value : got.dk) EXPECT_TRUE(std::isfinite(value));
  expect_right(c);
}

TEST_F(AttentionTest, NotANumberIsNotHidden) {
  Problem problem({.batch = 1, .heads = 1, .key_heads = 1, .queries = 5, .keys = 5});
  problem.q[0] = std::numeric_limits<double>::quiet_NaN();
  const Results got = problem.run();
  EXPECT_TRUE(std::isnan(got.out[0]));
  EXPECT_TRUE(std::isnan(got.dk[0]));
  EXPECT_FALSE(std::isnan(got.out[static_cast<std::size_t>(problem.out_stride())]));
}

TEST_F(AttentionTest, GradientsAreTheForwardsSlopes) {
  const Case c{.batch = 1,
               .heads = 2,
               .key_heads = 1,
               .head_dim = 8,
               .queries = 5,
               .keys = 7,
               .causal = true,
               .mask = false,
               .dropout = 0.25f,
               .dtype = float64};
  Problem problem(c);
  const Results at = problem.run();
  const auto loss = [&] {
    const Values out = problem.run().out;
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % problem.out_stride();
      if (column < c.heads * c.head_dim) sum += out[i] * problem.dout[i];
    }
    return sum;
  };
  const auto check = [&](Values& input, const Values& gradient) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      if (gradient[i] == Problem::kUntouched) continue;
      const double before = input[i], step = 1e-5;
      input[i] = before + step;
      const double above = loss();
      input[i] = before - step;
      const double below = loss();
      input[i] = before;
      EXPECT_NEAR((above - below) / (2 * step), gradient[i], 1e-8);
    }
  };
  check(problem.q, at.dq);
  check(problem.k, at.dk);
  check(problem.v, at.dv);
}

TEST_F(AttentionTest, ThreadsDoNotChangeABit) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    const Problem problem({.batch = 3,
                           .heads = 4,
                           .key_heads = 2,
                           .queries = 100,
                           .keys = 100,
                           .causal = true,
                           .mask = true,
                           .dropout = 0.2f,
                           .dtype = dtype});
    set_compute_threads(1);
    const Results one = problem.run();
    set_compute_threads(2);
    const Results two = problem.run();
    EXPECT_EQ(one.out, two.out);
    EXPECT_EQ(one.dq, two.dq);
    EXPECT_EQ(one.dk, two.dk);
    EXPECT_EQ(one.dv, two.dv);
  }
}

TEST_F(AttentionTest, MisuseNamesTheShape) {
  const Problem problem({.heads = 3, .key_heads = 2});
  try {
    cpu::attention_forward({.shape = problem.shape(),
                            .q = nullptr,
                            .k = nullptr,
                            .v = nullptr,
                            .out = nullptr,
                            .log_sum_exp = nullptr});
    FAIL() << "accepted 3 heads over 2 key heads";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("heads 3, key heads 2"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::kernels
