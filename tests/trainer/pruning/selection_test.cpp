// The pruned elements are those of a plain selection over whole tensors, however these are spread
// over ranks.
#include "trainer/pruning/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "comm/communicator.h"
#include "sharding/context/context.h"
#include "trainer/pruning/groups.h"
#include "trainer/pruning/options.h"

namespace tessera {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

// Many equal magnitudes, zeros, infinities and subnormal numbers among others.
std::vector<Floats> draw_tensors(std::mt19937& random, const std::vector<std::size_t>& sizes) {
  std::uniform_int_distribution<int> kind(0, 9);
  std::normal_distribution<float> normal;
  std::vector<Floats> tensors;
  for (const std::size_t size : sizes) {
    Floats values(size);
    for (float& value : values) {
      const int drawn = kind(random);
      value = drawn == 0   ? 0.0F
              : drawn == 1 ? -0.0F
              : drawn < 6  ? std::round(normal(random) * 2) / 4
              : drawn == 6 ? 1e-41F * normal(random)
                           : normal(random);
    }
    if (size > 3) values[3] = INFINITY;
    tensors.push_back(values);
  }
  return tensors;
}

// For each tensor the borders of the ranks' ranges: 0, ..., size.
std::vector<std::vector<std::int64_t>> draw_borders(std::mt19937& random, int ranks,
                                                    const std::vector<Floats>& tensors) {
  std::vector<std::vector<std::int64_t>> borders;
  for (const Floats& tensor : tensors) {
    std::uniform_int_distribution<std::int64_t> place(0, static_cast<std::int64_t>(tensor.size()));
    std::vector<std::int64_t> own{0, static_cast<std::int64_t>(tensor.size())};
    for (int i = 1; i < ranks; ++i) own.push_back(place(random));
    std::sort(own.begin(), own.end());
    borders.push_back(own);
  }
  return borders;
}

// A rank's runs: its range alone, or (copies) whole tensors, of which it reports its range.
std::vector<PrunedRun> runs_of(const std::vector<Floats>& tensors,
                               const std::vector<std::vector<std::int64_t>>& borders, int rank,
                               bool copies) {
  std::vector<PrunedRun> runs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t begin = borders[i][static_cast<std::size_t>(rank)];
    const std::int64_t end = borders[i][static_cast<std::size_t>(rank) + 1];
    const std::int64_t size = copies ? static_cast<std::int64_t>(tensors[i].size()) : end - begin;
    const std::int64_t first = copies ? 0 : begin;
    const Floats values(tensors[i].begin() + first, tensors[i].begin() + first + size);
    runs.push_back({first, size, begin, end - begin, [values] { return values; }});
  }
  return runs;
}

using Choose = std::function<void(const std::vector<PrunedRun>&, const RankExchange&,
                                  const std::function<void(std::size_t, Bytes)>&)>;

void expect_choice(const std::vector<Floats>& tensors, const std::vector<Bytes>& wanted,
                   std::mt19937& random, const Choose& choose) {
  for (const int ranks : {1, 2, 3}) {
    const auto borders = draw_borders(random, ranks, tensors);
    for (const bool copies : {false, true}) {
      launch(ranks, [&](Context& context) {
        const std::vector<PrunedRun> runs = runs_of(tensors, borders, context.rank(), copies);
        const RankExchange exchange = [&](std::string_view text) {
          return context.communicator().exchange(text);
        };
        std::size_t seen = 0;
        choose(runs, exchange, [&](std::size_t run, const Bytes& chosen) {
          const auto first = wanted[run].begin() + runs[run].first;
          EXPECT_EQ(chosen, Bytes(first, first + runs[run].size))
              << "tensor " << run << ", rank " << context.rank() << " of " << ranks;
          ++seen;
        });
        EXPECT_EQ(seen, tensors.size());
      });
    }
  }
}

// The `count` first of a stable sort by magnitude.
void choose_plainly(const std::vector<Floats>& tensors, const PrunedSet& set,
                    std::vector<Bytes>& chosen) {
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (const std::size_t run : set.runs) {
    for (std::size_t i = 0; i < tensors[run].size(); ++i) places.emplace_back(run, i);
  }
  std::stable_sort(places.begin(), places.end(), [&](const auto& a, const auto& b) {
    return std::abs(tensors[a.first][a.second]) < std::abs(tensors[b.first][b.second]);
  });
  for (std::int64_t i = 0; i < set.count; ++i) {
    const auto& [run, element] = places[static_cast<std::size_t>(i)];
    chosen[run][element] = 1;
  }
}

TEST(PruningSelection, IsThatOfAPlainSortOnAnyWorld) {
  std::mt19937 random(3);
  const std::vector<Floats> tensors = draw_tensors(random, {57, 1, 200, 8});
  const std::int64_t all = 57 + 1 + 200 + 8;
  std::vector<std::vector<PrunedSet>> cases;
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, all / 3, all / 2, all}) {
    cases.push_back({{{0, 1, 2, 3}, count}});
  }
  cases.push_back({{{0}, 28}, {{1}, 1}, {{2}, 150}, {{3}, 0}});
  for (const std::vector<PrunedSet>& sets : cases) {
    std::vector<Bytes> wanted;
    for (const Floats& tensor : tensors) wanted.emplace_back(tensor.size());
    for (const PrunedSet& set : sets) choose_plainly(tensors, set, wanted);
    expect_choice(tensors, wanted, random,
                  [&](const auto& runs, const auto& exchange, const auto& use) {
                    choose_smallest(runs, sets, exchange, use);
                  });
  }
}

// [8, 12]; [4, 7] and [16, 5] in-first.
void expect_groups(const std::vector<GroupLayout>& layouts, const std::vector<int>& numbers) {
  std::mt19937 random(5);
  const std::vector<Floats> tensors = draw_tensors(random, {8 * 12, 4 * 7, 16 * 5});
  for (const int zeros : numbers) {
    std::vector<Bytes> wanted;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto stride = static_cast<std::size_t>(layouts[t].stride);
      const auto size = static_cast<std::size_t>(layouts[t].size);
      Bytes chosen(tensors[t].size());
      for (std::size_t i = 0; i < tensors[t].size(); ++i) {
        if (i / stride % size != 0) continue;  // not the first of a group
        for (int n = 0; n < zeros; ++n) {
          std::size_t least = tensors[t].size();
          for (std::size_t j = i; j <= i + (size - 1) * stride; j += stride) {
            if (chosen[j] != 0) continue;
            if (least == tensors[t].size() ||
                std::abs(tensors[t][j]) < std::abs(tensors[t][least])) {
              least = j;
            }
          }
          chosen[least] = 1;
        }
      }
      wanted.push_back(chosen);
    }
    expect_choice(tensors, wanted, random,
                  [&](const auto& runs, const auto& exchange, const auto& use) {
                    const std::vector<std::int64_t> of_each(tensors.size(), zeros);
                    choose_in_groups(runs, layouts, of_each, exchange, use);
                  });
  }
}

TEST(PruningSelection, GroupsOfFourAreThoseOfWholeMatricesOnAnyWorld) {
  expect_groups({{1}, {7}, {5}}, {1, 2});
}

TEST(PruningSelection, TheInputsOfEachOutputAreThoseOfWholeMatricesOnAnyWorld) {
  expect_groups({{1, 12}, {7, 4}, {5, 16}}, {0, 1, 3, 4});
}

TEST(PruningSelection, TheScheduleIsCubic) {
  PruningOptions options{.sparsity = 0.8, .begin = 10, .end = 50, .every = 15};
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= 100; ++step) {
    if (options.chooses_after(step)) steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{10, 25, 40, 50}));
  EXPECT_EQ(options.sparsity_after(9), 0);
  EXPECT_EQ(options.sparsity_after(10), 0);
  EXPECT_DOUBLE_EQ(options.sparsity_after(30), 0.8 * (1 - 0.125));
  EXPECT_EQ(options.sparsity_after(50), 0.8);
  EXPECT_EQ(options.sparsity_after(51), 0.8);
  options.end = options.begin;
  EXPECT_EQ(options.sparsity_after(9), 0);
  EXPECT_EQ(options.sparsity_after(10), 0.8);
  EXPECT_TRUE(options.chooses_after(10));
  EXPECT_FALSE(options.chooses_after(25));
}

}  // namespace
}  // namespace tessera
