// Samples dealt by cost: the best division of all, within the bounds, for random lengths.
#include "tasks/batches/dealing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera::tasks {
namespace {

using Lengths = std::vector<std::int64_t>;

double row_cost(std::int64_t length) {
  return static_cast<double>(length) * (1 + static_cast<double>(length) / 50);
}

double largest_cost(const Lengths& lengths, const std::vector<Lengths>& dealt) {
  double most = 0;
  for (const Lengths& part : dealt) {
    std::int64_t longest = 1;
    for (const std::int64_t i : part)
      longest = std::max(longest, lengths[static_cast<std::size_t>(i)]);
    most = std::max(most, static_cast<double>(part.size()) * row_cost(longest));
  }
  return most;
}

// The best division into runs of the samples by falling length: all cuts are tried.
double best_cost(Lengths lengths, std::int64_t parts, std::int64_t most_places) {
  std::sort(lengths.rbegin(), lengths.rend());
  const auto samples = static_cast<std::int64_t>(lengths.size());
  constexpr double none = 1e300;
  std::vector<std::vector<double>> best(static_cast<std::size_t>(parts) + 1,
                                        std::vector<double>(lengths.size() + 1, none));
  best[0][0] = 0;
  for (std::int64_t part = 1; part <= parts; ++part) {
    for (std::int64_t end = 1; end <= samples; ++end) {
      for (std::int64_t begin = 0; begin < end; ++begin) {
        const std::int64_t longest =
            std::max<std::int64_t>(lengths[static_cast<std::size_t>(begin)], 1);
        if ((end - begin) * longest > most_places) continue;
        double& here = best[static_cast<std::size_t>(part)][static_cast<std::size_t>(end)];
        here = std::min(
            here,
            std::max(best[static_cast<std::size_t>(part) - 1][static_cast<std::size_t>(begin)],
                     static_cast<double>(end - begin) * row_cost(longest)));
      }
    }
  }
  return best[static_cast<std::size_t>(parts)][lengths.size()];
}

TEST(Dealing, IsTheBestDivisionOfRandomLengths) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t parts = 1 + static_cast<std::int64_t>(random() % 5);
    const std::int64_t each = 1 + static_cast<std::int64_t>(random() % 6);
    constexpr std::int64_t longest = 100;
    Lengths lengths(static_cast<std::size_t>(parts * each));
    for (std::int64_t& length : lengths) length = 1 + static_cast<std::int64_t>(random() % longest);
    const std::int64_t most_places = each * longest;
    const auto dealt = deal_by_cost(lengths, parts, most_places, row_cost);
    ASSERT_EQ(dealt.size(), static_cast<std::size_t>(parts));
    Lengths all;
    for (const Lengths& part : dealt) {
      ASSERT_FALSE(part.empty());
      EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
      std::int64_t most = 0;
      for (const std::int64_t i : part) most = std::max(most, lengths[static_cast<std::size_t>(i)]);
      EXPECT_LE(static_cast<std::int64_t>(part.size()) * most, most_places);
      all.insert(all.end(), part.begin(), part.end());
    }
    std::sort(all.begin(), all.end());
    Lengths numbers(lengths.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    EXPECT_EQ(all, numbers);
    EXPECT_LE(largest_cost(lengths, dealt), best_cost(lengths, parts, most_places) * (1 + 1e-9));
  }
}

TEST(Dealing, OneLongSampleIsAloneAndEqualOnesAreEvenlyDivided) {
  const RowCost tokens = [](std::int64_t length) { return static_cast<double>(length); };
  EXPECT_EQ(deal_by_cost(Lengths{10, 10, 1000, 10}, 2, 2000, tokens),
            (std::vector<Lengths>{{2}, {0, 1, 3}}));
  EXPECT_EQ(deal_by_cost(Lengths{5, 5, 5, 5, 5, 5}, 3, 10, tokens),
            (std::vector<Lengths>{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_THROW((void)deal_by_cost(Lengths{5}, 2, 10, tokens), std::logic_error);
}

}  // namespace
}  // namespace tessera::tasks
