// train.accumulation_ramp: its values, and a run whose memory is the plan's to the byte.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/cli/training_testing.h"
#include "training/recipe/recipe.h"
#include "training/recipe/schema.h"

namespace tessera::training {
namespace {

using testing::metrics_in;
using testing::read_text;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

Recipe with_ramp(const std::string& ramp) {
  return parse_recipe("data: {train: a.txt}\ntrain: {accumulation_ramp: " + ramp + "}\n", "r.yaml",
                      {});
}

// The written form of a recipe sorts keys as texts.
TEST(AccumulationRampOfARecipe, IsReadInAnyOrderAndWritten) {
  const StepRamp expected{{{9, 2}, {100, 4}, {2000, 8}}};
  EXPECT_EQ(with_ramp("{9: 2, 2000: 8, 100: 4}").train.accumulation_ramp, expected);
  EXPECT_EQ(with_ramp("{'9': 2, '100': 4, '2000': 8}").train.accumulation_ramp, expected);
  const nlohmann::json written = to_json(with_ramp("{2000: 8, 9: 2, 100: 4}"));
  EXPECT_EQ(with_ramp(written["train"]["accumulation_ramp"].dump()).train.accumulation_ramp,
            expected);
  EXPECT_TRUE(with_ramp("{}").train.accumulation_ramp.empty());
  EXPECT_TRUE(with_ramp("null").train.accumulation_ramp.empty());
}

TEST(AccumulationRampOfARecipe, RefusesBadValues) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"4", "train.accumulation_ramp must be steps with numbers, as {500: 2, 2000: 4}"},
      {"[[2, 3]]", "must be steps with numbers"},
      {"{1: 2}", "a step of train.accumulation_ramp must be at least 2, got 1"},
      {"{-3: 2}", "must be at least 2, got -3"},
      {"{2.5: 2}", "a step of train.accumulation_ramp must be a whole number"},
      {"{later: 2}", "a step of train.accumulation_ramp must be a whole number"},
      {"{5: 0}", "train.accumulation_ramp.5 must be at least 1, got 0"},
      {"{5: many}", "train.accumulation_ramp.5 must be a whole number"},
      {"{5: 2, 5: 3}", "given twice"},
      {"{5: 2, +5: 3}", "train.accumulation_ramp has step 5 twice"},
  };
  for (const auto& [ramp, message] : cases) {
    std::string refusal = "(accepted)";
    try {
      (void)with_ramp(ramp);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration) << ramp;
      refusal = error.what();
    }
    EXPECT_NE(refusal.find(message), std::string::npos) << ramp << ": " << refusal;
  }
}

// Steps of other sizes are in the logs. Memory is measured in the second step, the largest.
TEST(AccumulationRampOfARecipe, NeedsTheMemoryOfItsPlanToTheByte) {
  const TrainingFolder folder;
  for (const std::string syncs : {"true", "false"}) {
    const Settings settings = folder.small() + Settings{{"train.accumulation_ramp", "{2: 3, 5: 2}"},
                                                        {"train.steps", "6"},
                                                        {"train.sync_each_batch", syncs},
                                                        {"log.jsonl", folder.path("run.jsonl")},
                                                        {"log.memory", folder.path("memory.json")}};
    std::vector<std::string> plan = testing::train_arguments(settings);
    plan.front() = "plan";
    plan.insert(plan.end(), {"--world-size", "2", "--json", folder.path("plan.json")});
    const testing::Ended planned = testing::run_program(plan);
    ASSERT_EQ(planned.code, 0) << planned.err;
    EXPECT_NE(planned.out.find("at most 3 batches a step"), std::string::npos) << planned.out;
    const auto report = nlohmann::json::parse(read_text(folder.path("plan.json")));
    EXPECT_EQ(report["gradient_accumulation_steps"], 3);
    train(2, settings);
    const auto memory = nlohmann::json::parse(read_text(folder.path("memory.json")));
    EXPECT_EQ(memory["measured"], memory["planned"]) << syncs;
    std::vector<std::int64_t> samples;
    for (const nlohmann::json& step : metrics_in(folder.path("run.jsonl"))) {
      const double of_step =
          step.at("samples_per_s").get<double>() * step.at("step_s").get<double>();
      samples.push_back(std::lround(of_step));
    }
    ASSERT_EQ(samples.size(), 6u);
    EXPECT_EQ(samples[1], 3 * samples[0]);
    EXPECT_EQ(samples[5], 2 * samples[0]);
  }
}

}  // namespace
}  // namespace tessera::training
