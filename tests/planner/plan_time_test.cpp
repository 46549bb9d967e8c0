// `tessera plan --cluster`: times, what they follow from, how fast they come, and bad input.
#include "tests/cli/training_testing.h"
#include "tests/support/processor_time.h"
#include "tests/support/sanitizers.h"

namespace tessera::planner {
namespace {

using testing::Ended;
using testing::example_recipe;
using testing::read_text;
using testing::run_program;
using testing::TrainingFolder;

constexpr const char* described_machine =
    "name: a machine\ndevice: cuda\nper_node: 8\nmemory: 80GB\n"
    "matrix_rate: {float32: 60e12, bfloat16: 900e12}\nmemory_rate: 3e12\nlaunch: 2us\n"
    "inside: {rate: 300e9, latency: 3us}\nacross: {rate: 50e9, latency: 10us}\n"
    "host_link: {rate: 50e9, latency: 5us}\n";

nlohmann::json timed_plan(const std::string& recipe, std::vector<std::string> options,
                          int code = 0) {
  const TrainingFolder folder;
  const std::string file = folder.path("plan.json");
  options.insert(options.begin(), {"plan", recipe});
  options.insert(options.end(), {"--json", file});
  const Ended ended = run_program(options);
  EXPECT_EQ(ended.code, code) << ended.err;
  return nlohmann::json::parse(read_text(file));
}

// A small model on eight ranks, with one line of the cluster file replaced.
nlohmann::json on_machine(const std::string& key, const std::string& line,
                          std::vector<std::string> options = {}) {
  const TrainingFolder folder;
  std::string text;
  std::istringstream lines{std::string(described_machine)};
  for (std::string one; std::getline(lines, one);) {
    text += (one.starts_with(key + ":") ? line : one) + "\n";
  }
  folder.write("machine.yaml", text);
  options.insert(options.end(), {"--cluster", folder.path("machine.yaml"), "--strategy", "all"});
  if (std::find(options.begin(), options.end(), "--world-size") == options.end())
    options.insert(options.end(), {"--world-size", "16"});
  return timed_plan(example_recipe(), options);
}

TEST(PlanTime, HasATimeForEveryStrategyAndAddsUp) {
  const nlohmann::json plan = on_machine("", "");
  EXPECT_EQ(plan["format"], "tessera-plan");
  ASSERT_EQ(plan["rows"].size(), 6U);
  for (const nlohmann::json& row : plan["rows"]) {
    const nlohmann::json& time = row["predicted"];
    ASSERT_FALSE(time.is_null()) << row;
    double exposed = 0;
    for (const auto& [phase, seconds] : time["exposed_s"].items()) {
      EXPECT_GE(seconds.get<double>(), 0) << phase;
      exposed += seconds.get<double>();
    }
    const double step = time["step_s"];
    EXPECT_GT(step, 0);
    EXPECT_NEAR(exposed + time["compute_s"].get<double>(), step, 1e-9);
    EXPECT_GT(time["mfu"].get<double>(), 0);
    EXPECT_LT(time["mfu"].get<double>(), 1);
    EXPECT_NEAR(time["tokens_per_s"].get<double>(), 16 * 8 * 256 / step, 1);
    EXPECT_EQ(row["memory"]["planned"], row["memory"]["kinds"]["total"]);
  }
  ASSERT_EQ(plan["recommendations"].size(), 1U);
  EXPECT_FALSE(plan["recommendations"][0]["reason"].get<std::string>().empty());
}

TEST(PlanTime, IsNeverSlowerOnFasterLinksOrChips) {
  const nlohmann::json before = on_machine("", "");
  const struct {
    const char *key, *line;
  } faster[] = {{"inside", "inside: {rate: 600e9, latency: 3us}"},
                {"inside", "inside: {rate: 300e9, latency: 1us}"},
                {"across", "across: {rate: 100e9, latency: 10us}"},
                {"across", "across: {rate: 50e9, latency: 1us}"},
                {"memory_rate", "memory_rate: 6e12"},
                {"matrix_rate", "matrix_rate: {float32: 120e12}"},
                {"launch", "launch: 1us"}};
  for (const auto& change : faster) {
    const nlohmann::json after = on_machine(change.key, change.line);
    for (std::size_t i = 0; i < before["rows"].size(); ++i) {
      EXPECT_LE(after["rows"][i]["predicted"]["step_s"].get<double>(),
                before["rows"][i]["predicted"]["step_s"].get<double>() * (1 + 1e-9))
          << change.line << " " << before["rows"][i]["strategy"];
    }
  }
}

TEST(PlanTime, DoesNotDependOnMemory) {
  const nlohmann::json before = on_machine("", "");
  const nlohmann::json after = on_machine("memory", "memory: 160GB");
  for (std::size_t i = 0; i < before["rows"].size(); ++i) {
    EXPECT_EQ(before["rows"][i]["predicted"], after["rows"][i]["predicted"]);
  }
}

// More gathers and recomputation take longer.
TEST(PlanTime, FollowsTheSchedule) {
  const nlohmann::json plan =
      on_machine("across", "across: {rate: 1e9, latency: 10us}",
                 {"--sweep", "sharding.activation_checkpointing=false,true"});
  const auto step = [&](std::size_t row) {
    return plan["rows"][row]["predicted"]["step_s"].get<double>();
  };
  ASSERT_EQ(plan["rows"].size(), 12U);
  EXPECT_EQ(plan["rows"][3]["strategy"], "FULL_SHARD");
  EXPECT_EQ(plan["rows"][2]["strategy"], "SHARD_GRAD_OP");
  EXPECT_GT(step(3), step(2));
  EXPECT_GT(step(6), step(0));  // NO_SHARD, recomputed
  EXPECT_EQ(plan["rows"][6]["settings"][0], "sharding.activation_checkpointing=true");
  // The same operations of the model in a longer step.
  EXPECT_LT(plan["rows"][6]["predicted"]["mfu"].get<double>(),
            plan["rows"][0]["predicted"]["mfu"].get<double>());
}

TEST(PlanTime, SweepsOverWorldsAndBaselines) {
  const nlohmann::json plan = timed_plan(
      example_recipe(),
      {"--cluster", "a100", "--sweep", "world_size=1,8", "--sweep", "strategy=dp,FULL_SHARD"});
  ASSERT_EQ(plan["rows"].size(), 4U);
  EXPECT_EQ(plan["rows"][0]["strategy"], "dp");
  EXPECT_EQ(plan["rows"][2]["world_size"], 8);
  EXPECT_EQ(plan["recommendations"].size(), 2U);
}

// In a sweep only the rows are judged: the recipe without it need neither fit nor be possible.
TEST(PlanTime, TakesTheExitCodeOfASweepFromItsRows) {
  const std::string recipe = example_recipe();
  const nlohmann::json one =
      timed_plan(recipe, {"--cluster", "a100", "--world-size", "8", "--strategy", "FULL_SHARD"});
  const std::string memory = one["rows"][0]["memory"]["planned"].dump();
  const auto swept = [&](const std::string& worlds, int code) {
    return timed_plan(recipe,
                      {"--cluster", "a100", "--device-memory", memory, "--strategy", "FULL_SHARD",
                       "--sweep", "world_size=" + worlds},
                      code);
  };
  EXPECT_EQ(swept("1,8", 0)["rows"][1]["fits"], true);
  EXPECT_EQ(swept("1,2", 6)["rows"][0]["fits"], false);
  // One rank, which is the default without --world-size, has no groups of four.
  const nlohmann::json groups =
      timed_plan(recipe, {"--cluster", "a100", "--set", "sharding.group_size=4", "--sweep",
                          "strategy=HYBRID_SHARD", "--sweep", "world_size=8,6"});
  EXPECT_FALSE(groups["rows"][0]["predicted"].is_null());
  EXPECT_NE(groups["rows"][1]["refused"].get<std::string>().find("group_size"), std::string::npos);
  const Ended none =
      run_program({"plan", recipe, "--cluster", "a100", "--set", "sharding.group_size=4", "--sweep",
                   "strategy=HYBRID_SHARD", "--sweep", "world_size=6"});
  EXPECT_EQ(none.code, 3) << none.out;
}

// A row with more CPU ranks than a host can have reports that; the other rows are not affected.
TEST(PlanTime, RefusesAWorldOfASweepInItsRow) {
  const nlohmann::json plan =
      timed_plan(example_recipe(), {"--cluster", "a100", "--device", "cpu", "--sweep",
                                    "world_size=2,1000", "--sweep", "strategy=dp,FULL_SHARD"});
  ASSERT_EQ(plan["rows"].size(), 4U);
  EXPECT_FALSE(plan["rows"][1]["memory"]["planned"].is_null()) << plan["rows"][1];
  for (const std::size_t row : {2U, 3U}) {
    const std::string refused = plan["rows"][row]["refused"].get<std::string>();
    EXPECT_NE(refused.find("--device cuda"), std::string::npos) << plan["rows"][row];
  }
}

TEST(PlanTime, ReportsWhatDoesNotFitAndWhatIsFastest) {
  const Ended ended =
      run_program({"plan", example_recipe(), "--cluster", "a100", "--device-memory", "1MB",
                   "--sweep", "world_size=1,2", "--strategy", "NO_SHARD,FULL_SHARD"});
  EXPECT_EQ(ended.code, 6) << ended.err;
  EXPECT_NE(ended.out.find("  does not fit: "), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("nothing fits on 2 ranks: the least is FULL_SHARD with "),
            std::string::npos)
      << ended.out;
}

// A batch of 16 that is split over eight GPUs is 2 per GPU, under dp as under NO_SHARD.
TEST(PlanTime, PlansDataParallelWithTheBatchOfARank) {
  const auto dp = [](const std::string& batch, const std::string& split, int code = 0) {
    return timed_plan(example_recipe(),
                      {"--cluster", "a100", "--sweep", "world_size=8", "--strategy", "dp", "--set",
                       "data.batch_size=" + batch, "--set", "data.split_batches=" + split},
                      code);
  };
  const nlohmann::json whole = dp("2", "false")["rows"][0];
  const nlohmann::json split = dp("16", "true")["rows"][0];
  EXPECT_EQ(split["memory"], whole["memory"]);
  EXPECT_EQ(split["predicted"], whole["predicted"]);
  const Ended uneven = run_program({"plan", example_recipe(), "--cluster", "a100", "--sweep",
                                    "world_size=8", "--strategy", "dp", "--set",
                                    "data.batch_size=12", "--set", "data.split_batches=true"});
  EXPECT_EQ(uneven.code, 3) << uneven.out;
  EXPECT_NE(uneven.err.find("cannot be split"), std::string::npos) << uneven.err;
}

// 10^12 parameters on 65,536 GPUs, and what would make them fit.
TEST(PlanTime, TakesSecondsForTheLargestWorld) {
  const TrainingFolder folder;
  folder.write("r.yaml",
               "model: {architecture: llama, vocab_size: 128256, hidden_size: 25600, "
               "intermediate_size: 68608, num_hidden_layers: 128, num_attention_heads: 200, "
               "num_key_value_heads: 200, tie_word_embeddings: false, seq_len: 8192}\n"
               "data: {train: corpus.txt, batch_size: 1}\n"
               "sharding: {mixed_precision: bf16, activation_checkpointing: full}\n");
  const double before = testing::children_processor_seconds();
  const nlohmann::json plan =
      timed_plan(folder.path("r.yaml"),
                 {"--cluster", "h200", "--world-size", "65536", "--strategy", "all"}, 6);
  const double seconds = testing::children_processor_seconds() - before;
  EXPECT_GT(plan["plans"][3]["bytes"]["parameters"].get<double>() * 65536 / 4, 1e12);
  EXPECT_FALSE(plan["rows"][3]["predicted"].is_null());
  const bool slowed = testing::address_sanitizer || testing::thread_sanitizer;
  if (!slowed) {
    EXPECT_LT(seconds, 10);
  }
}

TEST(PlanTime, RefusesPlansThatItCannotTime) {
  const TrainingFolder folder;
  folder.write("no-network.yaml",
               "name: n\ndevice: cuda\nper_node: 8\nmatrix_rate: {float32: 1e12}\n"
               "memory_rate: 1e12\ninside: {rate: 1e9, latency: 0}\n");
  const std::string recipe = example_recipe();
  const struct {
    std::vector<std::string> options;
    int code;
    std::string says;
  } cases[] = {
      {{recipe, "--cluster", "h10"}, 3, "did you mean h100?"},
      {{recipe, "--sweep", "world_size=2"}, 2, "name the cluster with --cluster"},
      {{recipe, "--strategy", "dp"}, 2, "name the cluster with --cluster"},
      {{recipe, "--cluster", "h100", "--sweep", "world_size"}, 2, "must be a key and values"},
      {{recipe, "--cluster", "h100", "--sweep", "world_size=0"}, 2, "whole numbers from 1"},
      {{recipe, "--cluster", "h100", "--sweep", "strategy=FULL_SHRD"}, 2, "mean FULL_SHARD?"},
      {{recipe, "--cluster", "h100", "--sweep", "train.stepps=1"}, 3, "did you mean steps?"},
      {{recipe, "--calibrate", folder.path("c.yaml")}, 2, "leave out the recipe"},
      {{"--calibrate", folder.path("none/c.yaml")}, 3, "does not exist"},
      {{"--calibrate", folder.path(".")}, 3, "it is a folder"},
      {{}, 2, "recipe is required"},
  };
  for (const auto& one : cases) {
    std::vector<std::string> words = {"plan"};
    words.insert(words.end(), one.options.begin(), one.options.end());
    const Ended ended = run_program(words);
    EXPECT_EQ(ended.code, one.code) << ended.err;
    EXPECT_NE(ended.err.find(one.says), std::string::npos) << ended.err;
  }
  // In a table it is a row without a time.
  const nlohmann::json plan =
      timed_plan(recipe, {"--cluster", folder.path("no-network.yaml"), "--world-size", "16"});
  EXPECT_TRUE(plan["rows"][0]["predicted"].is_null());
  EXPECT_NE(plan["rows"][0]["untimed"].get<std::string>().find("needs `across`"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::planner
