// The matrix: at the same world size every strategy gives the bits of NO_SHARD.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharding/sharding_testing.h"

namespace tessera::testing {

inline const std::vector<TrainingCase>& training_cases() {
  static const std::vector<TrainingCase> cases{
      {.name = "plain"},
      {.name = "dropout", .dropout = 0.1},
      {.name = "accumulation", .micro_batches = 2},
      {.name = "no_sync", .micro_batches = 2, .no_sync = true},
      {.name = "clipped", .max_norm = 1e-3},
  };
  return cases;
}

// The order of summation of a strategy; NO_SHARD must be configured to use the same.
inline int summation_group(const ShardingOptions& options, int world) {
  if (options.reduction_group != 0) return options.reduction_group;
  const int group = options.group_size;
  const bool power_of_two = (group & (group - 1)) == 0;
  return group == 0 || group == world || power_of_two ? 0 : group;
}

inline void expect_equal_strategies(int world, std::optional<DType> param_dtype,
                                    const TrainingCase& what) {
  std::map<int, Trajectory> expected;  // by order of summation
  for (ShardingOptions options : all_strategies(world)) {
    options.param_dtype = param_dtype;
    const int order = summation_group(options, world);
    if (!expected.contains(order)) {
      ShardingOptions plain = toy_options(Strategy::no_shard);
      plain.param_dtype = param_dtype;
      plain.reduction_group = order;
      expected[order] = train_toy(world, plain, what);
    }
    if (options.strategy == Strategy::no_shard) continue;
    EXPECT_TRUE(same_bits(expected[order], train_toy(world, options, what)))
        << describe(options) << " on " << world << " ranks, " << what.name;
  }
  const Trajectory& plain = expected[0];
  ASSERT_EQ(plain.norms.size(), 3u);
  EXPECT_GT(plain.norms.front(), 100 * what.max_norm);  // clipping takes effect
  EXPECT_NE(plain.losses.front().front(), plain.losses.front().back());
}

}  // namespace tessera::testing
