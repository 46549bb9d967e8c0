// The limit of a run's losses.
#include "trainer/spikes.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "support/errors.h"

namespace tessera {
namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite_value = std::numeric_limits<float>::infinity();

// A limit exists once four losses were seen.
SpikeWatch watch_of_four(double sigma = 3, SpikeAction action = SpikeAction::skip) {
  return SpikeWatch({.action = action, .sigma = sigma, .window = 4});
}

TEST(SpikeWatch, FindsALossAboveTheDeviationsOfTheLastLosses) {
  SpikeWatch watch = watch_of_four();
  std::int64_t step = 0;
  for (const float loss : {9.0f, 1.0f, 3.0f, 1.0f}) EXPECT_FALSE(watch.judge(++step, loss, 1));
  EXPECT_FALSE(watch.judge(++step, 3, 1));  // the mean of all was 3.5, and 9 leaves the window
  // Mean 2 and deviation 1.
  const auto spike = watch.judge(++step, 5.01f, 2);
  ASSERT_TRUE(spike);
  EXPECT_EQ(spike->step, 6);
  EXPECT_EQ(spike->loss, 5.01f);
  EXPECT_EQ(spike->grad_norm, 2.0f);
  EXPECT_DOUBLE_EQ(spike->limit.value(), 5);
  EXPECT_EQ(watch.in_a_row(), 1);
  EXPECT_FALSE(watch.judge(++step, 5, 1));  // the spike is not in the window
  EXPECT_EQ(watch.in_a_row(), 0);
}

TEST(SpikeWatch, HasNoLimitBeforeTheWindowIsFullAndNoneWithoutSigma) {
  SpikeWatch watch = watch_of_four();
  for (const float loss : {1.0f, 1.0f, 1.0f}) EXPECT_FALSE(watch.judge(1, loss, 1));
  EXPECT_FALSE(watch.judge(4, 1e30f, 1));
  SpikeWatch without({.action = SpikeAction::skip, .window = 2});
  for (int step = 1; step < 9; ++step) EXPECT_FALSE(without.judge(step, step < 5 ? 1 : 1e30f, 1));
}

TEST(SpikeWatch, GivesEqualLossesAThousandthOfTheirMean) {
  SpikeWatch watch = watch_of_four(2);
  for (int step = 1; step <= 4; ++step) EXPECT_FALSE(watch.judge(step, 10, 1));
  EXPECT_FALSE(watch.judge(5, 10.019f, 1));
  EXPECT_TRUE(watch_of_four().judge(1, infinite_value, 1));
  SpikeWatch other = watch_of_four(2);
  for (int step = 1; step <= 4; ++step) EXPECT_FALSE(other.judge(step, 10, 1));
  EXPECT_TRUE(other.judge(5, 10.021f, 1));
}

TEST(SpikeWatch, FindsValuesThatAreNotFinite) {
  SpikeWatch watch({});
  for (const auto& [loss, norm] : {std::pair{nan_value, 1.0f}, std::pair{infinite_value, 1.0f},
                                   std::pair{1.0f, nan_value}, std::pair{1.0f, infinite_value}}) {
    const auto spike = watch.judge(7, loss, norm);
    ASSERT_TRUE(spike);
    EXPECT_FALSE(spike->limit);
    EXPECT_EQ(spike->done, SpikeAction::stop);
  }
  EXPECT_EQ(watch.in_a_row(), 4);
}

TEST(SpikeWatch, GoesOnFromTheScalarsOfACheckpoint) {
  SpikeWatch first = watch_of_four();
  for (const float loss : {1.1f, 1.2f, 1.3f, 1.0f / 3}) EXPECT_FALSE(first.judge(1, loss, 1));
  ASSERT_TRUE(first.judge(5, 50, 1));
  Scalars scalars;
  first.save(scalars);
  SpikeWatch second = watch_of_four();
  second.restore(scalars);
  EXPECT_EQ(second.in_a_row(), 1);
  const auto expected = first.judge(6, 60, 1);
  const auto found = second.judge(6, 60, 1);
  ASSERT_TRUE(expected && found);
  EXPECT_EQ(found->limit, expected->limit);

  SpikeWatch smaller({.action = SpikeAction::skip, .sigma = 3, .window = 2});
  smaller.restore(scalars);
  EXPECT_NEAR(smaller.judge(6, 60, 1).value().limit.value(), 2.26667, 1e-5);  // of 1.3 and 1/3
  Scalars none;
  second.restore(none);
  EXPECT_FALSE(second.judge(7, 60, 1));
  SpikeWatch({}).save(none);
  EXPECT_FALSE(none.contains("spikes"));
}

TEST(SpikeWatch, RefusesScalarsThatNoRunSaved) {
  for (const char* losses : {"1 x", "1  2", "1 2 ", "nan", "1,2"}) {
    Scalars scalars;
    scalars.set("spikes/losses", losses).set("spikes/in_a_row", 0);
    EXPECT_NE(testing::error_of([&] { watch_of_four().restore(scalars); }, ErrorCode::checkpoint)
                  .find("no run saved"),
              std::string::npos)
        << losses;
  }
  for (const int in_a_row : {-1, 11}) {
    Scalars scalars;
    scalars.set("spikes/losses", "").set("spikes/in_a_row", in_a_row);
    EXPECT_NE(testing::error_of([&] { watch_of_four().restore(scalars); }, ErrorCode::checkpoint)
                  .find("no run saved"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
