// Every strategy at one world size, and the common part of their metrics.
#pragma once

#include "tests/cli/training_testing.h"

#include <nlohmann/json.hpp>

namespace tessera::testing {

inline std::vector<int> divisors(int world) {
  std::vector<int> found;
  for (int group = 1; group <= world; ++group) {
    if (world % group == 0) found.push_back(group);
  }
  return found;
}

// All six; the hybrid ones with each of the group sizes.
inline std::vector<Settings> all_strategies(const std::vector<int>& groups) {
  std::vector<Settings> rows;
  for (const char* name : {"NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD"}) {
    rows.push_back({{"sharding.sharding_strategy", name}});
  }
  for (const char* name : {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}) {
    for (const int group : groups) {
      rows.push_back(
          {{"sharding.sharding_strategy", name}, {"sharding.group_size", std::to_string(group)}});
    }
  }
  return rows;
}

// Settings of a run into folder `name`, which saves every two steps.
inline Settings saving_into(const TrainingFolder& folder, const std::string& name, int steps,
                            const std::string& strategy) {
  return folder.small() + Settings{{"train.steps", std::to_string(steps)},
                                   {"checkpoint.dir", folder.path(name)},
                                   {"checkpoint.every", "2"},
                                   {"checkpoint.state_dict_type", "SHARDED_STATE_DICT"},
                                   {"log.jsonl", folder.path(name + ".jsonl")},
                                   {"sharding.sharding_strategy", strategy}};
}

// A run of five steps in three parts, each under another strategy, has the losses of a whole one.
// The folder "parts" has its steps.
inline void expect_resumes_elsewhere(const TrainingFolder& folder, const Settings& more) {
  train(2, saving_into(folder, "whole", 5, "FULL_SHARD") + more);
  train(2, saving_into(folder, "parts", 2, "FULL_SHARD") + more);
  train_on(2, saving_into(folder, "parts", 4, "NO_SHARD") + more);
  train_on(2, saving_into(folder, "parts", 5, "SHARD_GRAD_OP") + more);
  EXPECT_EQ(losses_in(folder.path("parts.jsonl")), losses_in(folder.path("whole.jsonl")));
}

inline void expect_equal_bits(int world, const std::vector<int>& groups,
                              const Settings& more = {}) {
  const TrainingFolder folder;
  std::vector<std::string> expected;
  for (const Settings& strategy : all_strategies(groups)) {
    const std::string jsonl = folder.path("metrics.jsonl");
    const Settings settings = folder.small() + more + strategy + Settings{{"log.jsonl", jsonl}};
    const std::string title = nlohmann::json(settings).dump() + " on " + std::to_string(world);
    std::filesystem::remove(jsonl);
    train(world, settings);
    const std::vector<std::string> losses = losses_in(jsonl);
    ASSERT_EQ(losses.size(), std::stoul(settings.at("train.steps"))) << title;
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << title;
  }
}

inline void expect_equal_bits(int world, const Settings& more = {}) {
  expect_equal_bits(world, divisors(world), more);
}

}  // namespace tessera::testing
