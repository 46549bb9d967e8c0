// data.seq_len_ramp: steps whose sequences are cut into shorter rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

using testing::Ended;
using testing::metrics_in;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

std::vector<double> losses_of(const TrainingFolder& folder, int ranks, const std::string& name,
                              const Settings& more) {
  const std::string jsonl = folder.path(name + ".jsonl");
  const Ended ended = train(ranks, folder.small() +
                                       Settings{{"log.jsonl", jsonl},
                                                {"log.memory", folder.path(name + ".json")},
                                                {"data.shuffle", "false"},
                                                {"model.n_positions", "32"},
                                                {"model.dropout", "0.1"}} +
                                       more);
  EXPECT_EQ(ended.err.find("memory is not as planned"), std::string::npos) << ended.err;
  std::vector<double> losses;
  for (const nlohmann::json& step : metrics_in(jsonl)) losses.push_back(step.at("loss"));
  return losses;
}

const Settings whole_rows = {{"model.seq_len", "32"}, {"data.batch_size", "2"}};

// Each rank's 2 sequences of 32 tokens are its 8 of 8 tokens, or its 4 of 16, to the bit.
TEST(SeqLenRamp, IsTheRunsOfShortSequencesOneAfterTheOther) {
  const TrainingFolder folder;
  const auto saving = [&](const std::string& name, const std::string& steps) {
    return Settings{{"checkpoint.dir", folder.path(name)}, {"train.steps", steps}};
  };
  const std::vector<double> ramped = losses_of(
      folder, 2, "ramped",
      whole_rows + Settings{{"data.seq_len_ramp", "{1: 8, 3: 32}"}, {"train.steps", "4"}});
  const std::vector<double> at_8 = losses_of(
      folder, 2, "short", {{"model.seq_len", "8"}, {"data.batch_size", "8"}, {"train.steps", "2"}});
  ASSERT_EQ(ramped.size(), 4u);
  EXPECT_EQ(std::vector<double>(ramped.begin(), ramped.begin() + 2), at_8);
  // Saved after the short rows, and resumed with whole ones, for which the ramp is over.
  (void)losses_of(folder, 2, "part",
                  whole_rows + saving("part", "2") + Settings{{"data.seq_len_ramp", "{1: 8}"}});
  const std::vector<double> rest = losses_of(folder, 2, "part", whole_rows + saving("part", "4"));
  EXPECT_EQ(rest, ramped);  // the log of both parts
}

TEST(SeqLenRamp, NeedsAtMostTheMemoryOfWholeRows) {
  const TrainingFolder folder;
  const Settings settings = whole_rows + Settings{{"train.steps", "3"}};
  (void)losses_of(folder, 2, "whole", settings);
  (void)losses_of(folder, 2, "ramped", settings + Settings{{"data.seq_len_ramp", "{1: 4}"}});
  const auto memory = [&](const std::string& name, const char* of) {
    return nlohmann::json::parse(read_text(folder.path(name + ".json")))[of]["total"]
        .get<std::int64_t>();
  };
  EXPECT_EQ(memory("ramped", "planned"), memory("whole", "planned"));
  EXPECT_EQ(memory("whole", "planned"), memory("whole", "measured"));
  EXPECT_LE(memory("ramped", "measured"), memory("ramped", "planned"));
}

TEST(SeqLenRamp, RefusesBadValues) {
  const TrainingFolder folder;
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"data.seq_len_ramp", "{1: 12}"}},
       "data.seq_len_ramp has 12 for step 1; it must divide model.seq_len 32"},
      {{{"data.seq_len_ramp", "{1: 64}"}}, "has 64 for step 1; it must divide model.seq_len 32"},
      {{{"data.seq_len_ramp", "{0: 8}"}}, "a step of data.seq_len_ramp must be at least 1, got 0"},
      {{{"data.seq_len_ramp", "8"}}, "data.seq_len_ramp must be steps with numbers"},
      {{{"data.seq_len_ramp", "{1: 8}"}, {"train.task", "sft"}},
       "data.seq_len_ramp is for train.task: next_token"},
  };
  for (const auto& [settings, message] : cases) {
    const Ended ended = run_program(train_arguments(folder.small() + whole_rows + settings));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
  }
}

}  // namespace
}  // namespace tessera::training
