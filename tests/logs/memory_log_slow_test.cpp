// Compares plans with measurements: two dozen runs of the program, each with the plan of its memory
// and the memory that it held. The table is printed.
#include <fmt/format.h>

#include <cmath>

#include "tests/cli/training_testing.h"

namespace tessera::logs {
namespace {

using testing::Ended;
using testing::read_text;
using testing::Settings;
using testing::TrainingFolder;

struct ComparedRun {
  int ranks;
  Settings settings;
};

std::vector<ComparedRun> compared_runs() {
  const auto strategy = [](const std::string& name) {
    return Settings{{"sharding.sharding_strategy", name}};
  };
  const Settings bf16 = {{"sharding.mixed_precision", "bf16"}};
  const Settings local_sums = {{"train.gradient_accumulation_steps", "3"},
                               {"train.sync_each_batch", "false"}};
  const Settings accumulation = {{"train.gradient_accumulation_steps", "2"}};
  const Settings untied = {{"model.tie_word_embeddings", "false"}};
  const auto recomputed = [](const std::string& how) {
    return Settings{{"sharding.activation_checkpointing", how}};
  };
  const Settings adapters = {{"model.lora.r", "4"},
                             {"model.lora.target_modules", "[c_attn, c_proj]"}};
  const Settings frozen = {{"sharding.ignored_modules", "[transformer.h.0]"}};
  const Settings pairs = {{"sharding.group_size", "2"}};
  return {
      {1, strategy("NO_SHARD")},
      {1, strategy("FULL_SHARD") + bf16},
      {2, strategy("NO_SHARD")},
      {2, strategy("NO_SHARD") + bf16 + accumulation},
      {2, strategy("SHARD_OPTIMIZER")},
      {2, strategy("SHARD_OPTIMIZER") + bf16 + local_sums},
      {2, strategy("SHARD_GRAD_OP") + untied},
      {2, strategy("FULL_SHARD")},
      {2, strategy("FULL_SHARD") + bf16},
      {2, strategy("FULL_SHARD") + bf16 + untied + local_sums},
      {2, strategy("FULL_SHARD") + Settings{{"sharding.auto_wrap_policy", "NO_WRAP"}}},
      {2, strategy("FULL_SHARD") + recomputed("true") + Settings{{"model.dropout", "0.1"}}},
      {3, strategy("NO_SHARD") + untied},
      {3, strategy("SHARD_GRAD_OP") + bf16 + recomputed("selective")},
      {3, strategy("FULL_SHARD") + accumulation},
      {4, strategy("FULL_SHARD") + bf16 + Settings{{"sharding.reduce_dtype", "fp32"}}},
      {4, strategy("HYBRID_SHARD") + pairs},
      {4, strategy("HYBRID_SHARD_ZERO2") + pairs + bf16 + local_sums},
      {4, strategy("SHARD_OPTIMIZER") + Settings{{"train.optimizer", "sgd"}}},
      {4, strategy("FULL_SHARD") + Settings{{"sharding.backward_prefetch", "BACKWARD_POST"},
                                            {"sharding.forward_prefetch", "false"}}},
      {4, strategy("FULL_SHARD") + bf16 + Settings{{"sharding.reshard_after_forward", "2"}}},
      {4,
       strategy("FULL_SHARD") + accumulation +
           Settings{{"sharding.reshard_after_forward", "2"}, {"sharding.limit_all_gathers", "3"}}},
      {2, strategy("FULL_SHARD") + Settings{{"sharding.reshard_after_forward", "false"}}},
      {2, strategy("SHARD_GRAD_OP") + accumulation +
              Settings{{"sharding.reshard_after_backward", "false"}}},
      {2, strategy("FULL_SHARD") + bf16 + adapters},
      {2, strategy("SHARD_GRAD_OP") + adapters + recomputed("true")},
      {2, strategy("FULL_SHARD") + frozen},
  };
}

std::string describe_run(const ComparedRun& one) {
  std::string text = fmt::format("{} ranks", one.ranks);
  for (const auto& [key, value] : one.settings) {
    text += ", " + key.substr(key.find('.') + 1) + " " + value;
  }
  return text;
}

TEST(MemoryLog, RunsAreAsPlanned) {
  const TrainingFolder folder;
  std::string table = fmt::format("{:>12} {:>12} {:>8} {:>12} {:>8}  {}\n", "planned", "measured",
                                  "differ", "placed", "/ live", "run");
  int number = 0;
  for (const ComparedRun& one : compared_runs()) {
    const std::string file = folder.path(fmt::format("memory-{}.json", number++));
    const Ended ended =
        testing::train(one.ranks, folder.small() + one.settings + Settings{{"log.memory", file}});
    const nlohmann::json log = nlohmann::json::parse(read_text(file));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
      EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind << " of " << describe_run(one);
    }
    const auto planned = log["planned"]["total"].get<double>();
    const auto measured = log["measured"]["total"].get<double>();
    EXPECT_LE(std::abs(planned - measured), 0.02 * measured) << describe_run(one);
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    EXPECT_EQ(log["placed"]["planned"], log["placed"]["measured"]) << describe_run(one);
    const auto places = log["placed"]["measured"]["places"].get<double>();
    const auto live = log["placed"]["measured"]["live"].get<double>();
    EXPECT_LE(places, 1.03 * live) << describe_run(one);
    table += fmt::format("{:>12} {:>12} {:>7.3f}% {:>12} {:>8.4f}  {}\n", planned, measured,
                         100 * (planned - measured) / measured, places, places / live,
                         describe_run(one));
  }
  fmt::print("{}", table);
}

}  // namespace
}  // namespace tessera::logs
