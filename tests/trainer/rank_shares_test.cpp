// The division of a micro-batch by weights, and its change by the ranks' speed.
#include "trainer/rank_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "engine/data/permutation.h"
#include "support/errors.h"
#include "tasks/batch_order.h"

namespace tessera {
namespace {

using Parts = std::vector<std::int64_t>;

Parts divided(const std::vector<double>& weights, std::int64_t samples,
              std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  return divide_samples(weights, samples, most);
}

double largest_quotient(const Parts& samples, const std::vector<double>& weights) {
  double largest = 0;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    largest = std::max(largest, static_cast<double>(samples[rank]) / weights[rank]);
  }
  return largest;
}

TEST(RankShares, AreInProportionToTheWeights) {
  EXPECT_EQ(divided({3, 2, 1}, 12), (Parts{6, 4, 2}));
  EXPECT_EQ(divided({0.5, 0.25}, 16), (Parts{11, 5}));
  EXPECT_EQ(divided({1, 1, 1}, 9), (Parts{3, 3, 3}));
  EXPECT_EQ(divided({1, 1, 1}, 10), (Parts{4, 3, 3}));  // the lowest rank first
  EXPECT_EQ(divided({1e-300, 1, 1e300}, 9), (Parts{1, 1, 7}));
  EXPECT_EQ(divided({1e-320, 3e-320}, 8), (Parts{2, 6}));
  EXPECT_EQ(divided({1e308, 1e308, 1e308}, 9), (Parts{3, 3, 3}));
  EXPECT_EQ(divided({1e-320, 1e308}, 9), (Parts{1, 8}));
  EXPECT_EQ(divided({9, 1, 1}, 12, 6), (Parts{6, 3, 3}));
  EXPECT_EQ(divided({9, 1, 1}, 12, 4), (Parts{4, 4, 4}));
  EXPECT_EQ(divided({7}, 5), (Parts{5}));
}

// Random worlds, weights and batches, by the counters of a hash.
TEST(RankShares, AreOptimalForRandomWeights) {
  for (std::uint64_t trial = 0; trial < 2000; ++trial) {
    const auto drawn = [&](std::uint64_t what, std::uint64_t below) {
      return mix(mix(trial, 17), what) % below;
    };
    const std::size_t ranks = 1 + drawn(0, 9);
    const auto count = static_cast<std::int64_t>(ranks);
    const std::int64_t samples = count + static_cast<std::int64_t>(drawn(1, 200));
    std::vector<double> weights;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      weights.push_back(std::exp2(static_cast<double>(drawn(2 + rank, 1000)) / 125));
    }
    const std::int64_t even = (samples - 1) / count + 1;
    const std::int64_t most = drawn(20, 2) == 0 ? samples : even + 2;
    const Parts parts = divided(weights, samples, most);
    ASSERT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), samples);
    ASSERT_GE(*std::min_element(parts.begin(), parts.end()), 1);
    ASSERT_LE(*std::max_element(parts.begin(), parts.end()), most);
    ASSERT_EQ(divided({parts.begin(), parts.end()}, samples, most), parts) << trial;
    // No sample moved to another rank gives a smaller largest quotient.
    const double largest = largest_quotient(parts, weights);
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) {
        if (from == to || parts[from] == 1 || parts[to] == most) continue;
        Parts moved = parts;
        --moved[from];
        ++moved[to];
        ASSERT_GE(largest_quotient(moved, weights), largest * (1 - 1e-12)) << trial;
      }
    }
  }
}

// The ranks' parts of a batch are the batch in its order, also where epochs end.
TEST(RankShares, AreTheBatchInItsOrder) {
  for (const bool even_batches : {false, true}) {
    const tasks::BatchOrder order({.samples = {29}, .even_batches = even_batches});
    const RankShares shares({.given = {3, 1, 2.5, 0.1}}, 4, 5, "weights");
    ASSERT_EQ(shares.all(), 20);
    tasks::DataPosition position = order.begin();
    for (int step = 0; step < 9; ++step) {
      const auto batch = order.at(position, shares.all());
      Parts taken;
      for (int rank = 0; rank < 4; ++rank) {
        const auto part = order.share(batch, shares.first_of(rank), shares.samples_of(rank));
        taken.insert(taken.end(), part.begin(), part.end());
      }
      EXPECT_EQ(taken, order.share(batch, 0, shares.all())) << step;
      order.advance(position, batch);
    }
  }
}

TEST(RankShares, OfEqualWeightsAreEqual) {
  EXPECT_TRUE(RankShares({}, 3, 4, "weights").are_equal());
  EXPECT_TRUE(RankShares({.given = {2, 2, 2}}, 3, 4, "weights").are_equal());
  EXPECT_TRUE(RankShares({.measured = true}, 3, 4, "weights").are_equal());
  EXPECT_FALSE(RankShares({.given = {2, 2, 1}}, 3, 4, "weights").are_equal());
  EXPECT_FALSE(RankShares({}, 3, 4, "weights").are_asked());
}

std::vector<RankShares::Work> works(const RankShares& shares, const std::vector<double>& speeds) {
  std::vector<RankShares::Work> all;
  for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
    const std::int64_t tokens = shares.samples()[rank] * 100;
    all.push_back({tokens, static_cast<double>(tokens) / speeds[rank]});
  }
  return all;
}

TEST(RankShares, FollowTheMeasuredSpeedAtTheGivenSteps) {
  RankShares shares({.measured = true, .rebalance_every = 3, .limit = 4}, 2, 8, "weights");
  const std::vector<double> speeds{3000, 1000};
  for (std::int64_t step = 1; step <= 3; ++step) {
    shares.add(works(shares, speeds));
    EXPECT_EQ(shares.settle(step), step == 3) << step;
  }
  EXPECT_EQ(shares.samples(), (Parts{12, 4}));
  EXPECT_NEAR(imbalance_of(works(shares, speeds)), 0, 1e-12);
  // The first step with new parts does not count, and without another there is nothing to compare.
  shares.add(works(shares, {1000, 1000}));
  EXPECT_FALSE(shares.settle(6));
  shares.add(works(shares, {1000, 1000}));
  EXPECT_TRUE(shares.settle(9));
  EXPECT_EQ(shares.samples(), (Parts{8, 8}));
}

// A change that would save less than 5 % is not worth another batch.
TEST(RankShares, StayForASmallDifference) {
  RankShares shares({.measured = true, .rebalance_every = 1}, 2, 50, "weights");
  shares.add(works(shares, {1, 1}));
  shares.add(works(shares, {1.04, 0.96}));
  EXPECT_FALSE(shares.settle(1));
  shares.add(works(shares, {1.08, 0.92}));
  EXPECT_TRUE(shares.settle(2));
  EXPECT_EQ(shares.samples(), (Parts{54, 46}));
}

TEST(RankShares, AreBoundedByTheLimit) {
  EXPECT_EQ(largest_share({.measured = true, .limit = 1.5}, 4, 8), 12);
  EXPECT_EQ(largest_share({.measured = true, .limit = 1}, 4, 8), 8);
  EXPECT_EQ(largest_share({.measured = true, .limit = 2}, 2, 8), 15);  // one for the other rank
  EXPECT_EQ(largest_share({.given = {3, 1}}, 2, 8), 12);
  EXPECT_EQ(largest_share({}, 2, 8), 8);
  RankShares shares({.measured = true, .rebalance_every = 1, .limit = 1.5}, 2, 8, "weights");
  shares.add(works(shares, {1, 1}));
  shares.add(works(shares, {9, 1}));
  EXPECT_TRUE(shares.settle(1));
  EXPECT_EQ(shares.samples(), (Parts{12, 4}));
}

TEST(RankShares, GoOnFromACheckpoint) {
  const RankWeightOptions measured{.measured = true, .rebalance_every = 1, .limit = 4};
  RankShares shares(measured, 2, 8, "weights");
  shares.add(works(shares, {1, 1}));
  shares.add(works(shares, {3, 1}));
  ASSERT_TRUE(shares.settle(1));
  Scalars scalars;
  shares.save(scalars);
  const auto restored = [&](const RankWeightOptions& options, int ranks, std::int64_t batch) {
    RankShares other(options, ranks, batch, "weights");
    other.restore(scalars, "step-1");
    return other.samples();
  };
  EXPECT_EQ(restored(measured, 2, 8), (Parts{12, 4}));
  EXPECT_EQ(restored(measured, 2, 4), (Parts{6, 2}));
  EXPECT_EQ(restored(measured, 4, 4), (Parts{4, 4, 4, 4}));  // other ranks
  EXPECT_EQ(restored({}, 2, 8), (Parts{8, 8}));
  EXPECT_EQ(restored({.given = {1, 3}}, 2, 8), (Parts{4, 12}));
  Scalars equal;
  RankShares({}, 2, 8, "weights").save(equal);
  EXPECT_FALSE(equal.contains("rank_samples"));
}

TEST(RankShares, RefuseACheckpointWithOtherValues) {
  for (const char* text : {"", "x", "8", "8 0", "8 -1", "8  8", "8 8 ", "99999999999999999999 1"}) {
    Scalars scalars;
    scalars.set("rank_samples", text);
    RankShares shares({.measured = true}, 2, 8, "weights");
    if (std::string(text) == "8") {
      shares.restore(scalars, "step-1");  // one rank
      EXPECT_EQ(shares.samples(), (Parts{8, 8}));
      continue;
    }
    const std::string error =
        testing::error_of([&] { shares.restore(scalars, "step-1"); }, ErrorCode::checkpoint);
    EXPECT_TRUE(error.starts_with("step-1: rank_samples")) << error;
  }
}

TEST(RankShares, RefuseWeightsThatAreNone) {
  const auto refused = [](const std::vector<double>& weights) {
    return testing::error_of(
        [&] { const RankShares shares({.given = weights}, 2, 8, "run.yaml:7: data.rank_weights"); },
        ErrorCode::configuration);
  };
  EXPECT_EQ(refused({1}),
            "run.yaml:7: data.rank_weights has 1 weight for 2 ranks; give one for each rank, or "
            "auto");
  for (const double weight : {0.0, -1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_NE(refused({1, weight}).find("a weight is a finite number above 0"), std::string::npos);
  }
}

TEST(RankShares, AreWrittenForPeople) {
  EXPECT_EQ(text_of_shares({11, 5}), "11 and 5");
  EXPECT_EQ(text_of_shares({6, 4, 2}), "6, 4 and 2");
  EXPECT_EQ(text_of_shares(Parts(17, 3)), "3 to 3");
}

}  // namespace
}  // namespace tessera
