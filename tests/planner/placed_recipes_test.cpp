// The range in which a step's blocks have their places is at most 3 % above the largest sum of live
// bytes, for recipes of every strategy and option that changes what a step allocates.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/training_testing.h"

namespace tessera::planner {
namespace {

using testing::Ended;
using testing::example_recipe;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

constexpr const char* llama_recipe = R"(
model: {architecture: llama, vocab_size: 256, hidden_size: 64, intermediate_size: 176, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, seq_len: 64}
data: {train: text.txt, tokenizer: bytes, batch_size: 2}
train: {steps: 3}
sharding: {sharding_strategy: FULL_SHARD}
)";

struct Case {
  std::string name;
  Settings settings;
  bool llama = false;
};

std::vector<Case> cases() {
  return {
      {"plain", {}},
      {"recomputed", {{"sharding.activation_checkpointing", "true"}}},
      {"recomputed in part", {{"sharding.activation_checkpointing", "selective"}}},
      {"accumulated", {{"train.gradient_accumulation_steps", "3"}}},
      {"accumulated without exchange",
       {{"train.gradient_accumulation_steps", "3"}, {"train.sync_each_batch", "false"}}},
      {"bf16", {{"sharding.mixed_precision", "bf16"}}},
      {"bf16, recomputed",
       {{"sharding.mixed_precision", "bf16"}, {"sharding.activation_checkpointing", "true"}}},
      {"adapters", {{"model.lora.target_modules", "[c_attn]"}}},
      {"ignored", {{"sharding.ignored_modules", "[transformer.h.0]"}}},
      {"dropout", {{"model.resid_pdrop", "0.1"}, {"model.attn_pdrop", "0.1"}}},
      {"llama", {}, true},
      {"llama, tied, bf16",
       {{"sharding.mixed_precision", "bf16"}, {"model.tie_word_embeddings", "true"}},
       true},
  };
}

TEST(PlacedRecipes, NeedAtMostThreePercentMoreThanTheirLiveBytes) {
  const TrainingFolder folder;
  double worst = 1;
  int plans = 0;
  folder.write("llama.yaml", llama_recipe);
  for (const auto& [name, settings, llama] : cases()) {
    const std::string file = folder.path("plan.json");
    std::vector<std::string> arguments = {
        "plan", example_recipe(),  "--world-size", "4",          "--json",
        file,   "--device-memory", "1e18",         "--strategy", "all"};
    for (const auto& [key, value] : llama ? settings : folder.small() + settings) {
      arguments.insert(arguments.end(), {"--set", key + "=" + value});
    }
    const Ended ended = run_program(arguments);
    ASSERT_EQ(ended.code, 0) << name << ": " << ended.err;
    const nlohmann::json written = nlohmann::json::parse(read_text(file));
    for (const nlohmann::json& row : written["plans"]) {
      const auto places = row["placed"]["places"].get<double>();
      const auto live = row["placed"]["live"].get<double>();
      EXPECT_GT(live, 0) << name << row;
      EXPECT_GE(places, live) << name << row;
      EXPECT_LE(places, 1.03 * live) << name << row;
      worst = std::max(worst, places / live);
      ++plans;
    }
  }
  EXPECT_EQ(plans, 72);
  RecordProperty("worst_ratio", std::to_string(worst));
}

}  // namespace
}  // namespace tessera::planner
