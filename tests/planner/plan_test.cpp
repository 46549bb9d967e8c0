// `tessera plan`: its figures, its JSON, what it says when nothing fits, and bad input.
#include <algorithm>
#include <set>

#include "tests/cli/training_testing.h"
#include "tests/support/processor_time.h"

namespace tessera::planner {
namespace {

using testing::Ended;
using testing::example_recipe;
using testing::read_text;
using testing::run_program;
using testing::TrainingFolder;

std::string example(const std::string& name) {
  const char* folder = std::getenv("TESSERA_SOURCE_DIR");
  return std::string(folder != nullptr ? folder : ".") + "/examples/" + name;
}

// Plans, and returns the JSON. Unless a memory size is given, for machines with enough memory: the
// free memory of this machine is for another test.
nlohmann::json planned(const std::string& recipe, std::vector<std::string> options, int code = 0) {
  const TrainingFolder folder;
  const std::string file = folder.path("plan.json");
  const bool named = std::find(options.begin(), options.end(), "--device-memory") != options.end();
  if (!named) options.insert(options.end(), {"--device-memory", "1e18"});
  options.insert(options.begin(), {"plan", recipe});
  options.insert(options.end(), {"--json", file});
  const Ended ended = run_program(options);
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_EQ(ended.err, "");
  return nlohmann::json::parse(read_text(file));
}

constexpr const char* plan_kinds[] = {"parameters",    "gradients",   "optimizer",
                                      "communication", "activations", "other"};

TEST(Plan, HasEveryStrategyAndKind) {
  const nlohmann::json plan = planned(example_recipe(), {"--world-size", "4", "--strategy", "all"});
  EXPECT_EQ(plan["world_size"], 4);
  EXPECT_EQ(plan["device"], "cpu");
  EXPECT_EQ(plan["batch_size"], 8);
  ASSERT_EQ(plan["plans"].size(), 6u);
  std::set<std::string> strategies;
  for (const nlohmann::json& row : plan["plans"]) {
    strategies.insert(row["strategy"].get<std::string>());
    std::uint64_t sum = 0;
    for (const char* kind : plan_kinds) sum += row["bytes"][kind].get<std::uint64_t>();
    EXPECT_EQ(row["bytes"]["total"], sum);
    EXPECT_TRUE(row["peak"]["phase"] == "forward" || row["peak"]["phase"] == "backward") << row;
    std::uint64_t moved = 0;
    for (const nlohmann::json& call : row["collectives"])
      moved += call["bytes"].get<std::uint64_t>();
    EXPECT_EQ(row["moved_bytes"], moved);
    EXPECT_GT(moved, 0u);
    const nlohmann::json& placed = row["placed"];
    EXPECT_GE(placed["places"], placed["live"]);
    EXPECT_LE(placed["places"].get<double>(), 1.03 * placed["live"].get<double>()) << row;
    EXPECT_NEAR(placed["total"].get<double>() / static_cast<double>(sum), 1, 0.05) << row;
  }
  EXPECT_EQ(strategies,
            (std::set<std::string>{"NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD",
                                   "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}));
  const auto of = [&](std::size_t row, const char* kind) {
    return plan["plans"][row]["bytes"][kind].get<double>();
  };
  // Each of four ranks holds a quarter, and padding.
  EXPECT_EQ(plan["plans"][0]["strategy"], "NO_SHARD");
  EXPECT_EQ(plan["plans"][3]["strategy"], "FULL_SHARD");
  for (const char* kind : {"parameters", "optimizer"}) {
    EXPECT_NEAR(of(3, kind) / of(0, kind), 0.25, 0.002) << kind;
  }
  // The peak is in the forward, where gradients of a MiB and more have no memory: this applies to
  // the units of NO_SHARD, but not yet to a quarter of them.
  EXPECT_EQ(plan["plans"][0]["peak"]["phase"], "forward");
  EXPECT_NEAR(of(3, "gradients") / of(3, "parameters"), 1.0, 0.002);
  EXPECT_LT(of(0, "gradients"), of(0, "parameters") / 8);
}

// A list of weights is bound to its world.
TEST(Plan, AdvisesMoreRanksWithoutTheWeightsOfThePresentOnes) {
  const nlohmann::json plan = planned(example("llama3-405b.yaml"),
                                      {"--world-size", "2", "--device", "cuda", "--device-memory",
                                       "64GiB", "--set", "data.rank_weights=[3, 1]"},
                                      6);
  ASSERT_EQ(plan["advice"].size(), 1u);
  const auto changes = plan["advice"][0]["changes"].get<std::vector<std::string>>();
  EXPECT_EQ(std::count(changes.begin(), changes.end(), "--set data.rank_weights=null"), 1);
  EXPECT_EQ(std::count(changes.begin(), changes.end(), "--world-size 8"), 1);
}

// With a GPU the copy of an asynchronous save is in page-locked memory of the host.
TEST(Plan, CountsTheCopyOfAnAsynchronousSaveOnAGpusHost) {
  const TrainingFolder folder;
  const std::string recipe =
      "model: {architecture: gpt2, n_layer: 2, n_head: 2, n_embd: 64, seq_len: 64}\n"
      "data: {train: nothing.txt, tokenizer: bytes, batch_size: 2}\n"
      "checkpoint: {dir: steps, every: 10, async: true}\n";
  folder.write("r.yaml", recipe + "train: {device: cuda}\n");
  const nlohmann::json plan = planned(folder.path("r.yaml"), {"--world-size", "2"});
  const nlohmann::json& row = plan["plans"][0];
  const auto bytes = row["bytes"]["parameters"].get<double>();
  ASSERT_TRUE(row.contains("on_host")) << row;
  // Masters and two moments, without the padding, which is never saved.
  EXPECT_NEAR(row["on_host"]["other"].get<double>() / (3 * bytes), 1, 0.1);
}

// A folder that transformers saved defines the model; its weights are not needed.
TEST(Plan, TakesAPretrainedFolder) {
  const TrainingFolder folder;
  folder.write("config.json",
               R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,)"
               R"( "n_layer": 12, "n_head": 12})");
  folder.write("r.yaml", "model: {pretrained: " + folder.path("") +
                             ", seq_len: 1024}\ndata: {train: nothing.txt, batch_size: 2}\n");
  const nlohmann::json plan = planned(folder.path("r.yaml"), {"--world-size", "2"});
  // Half of GPT-2's 124,439,808 parameters.
  EXPECT_NEAR(plan["plans"][0]["bytes"]["parameters"].get<double>(), 124'439'808 * 4 / 2.0, 1e5);
}

// Needs neither data nor machines: 405 billion parameters on any number of ranks.
TEST(Plan, TheLargestModelOnTheLargestWorldInSeconds) {
  for (const char* world : {"1", "1024", "65536"}) {
    const double before = testing::children_processor_seconds();
    const nlohmann::json plan =
        planned(example("llama3-405b.yaml"),
                {"--world-size", world, "--strategy", "all", "--device", "cuda"});
    EXPECT_LT(testing::children_processor_seconds() - before, 10) << world;
    ASSERT_EQ(plan["plans"].size(), 6u);
    const nlohmann::json& full = plan["plans"][3]["bytes"];
    // fp32 masters of 405,853,388,800 parameters, divided by the number of ranks.
    const double share = 405'853'388'800.0 * 4 / std::stod(world);
    EXPECT_NEAR(full["parameters"].get<double>() / share, 1.0, 0.01) << world;
    EXPECT_NEAR(full["optimizer"].get<double>() / share, 2.0, 0.02) << world;
  }
}

TEST(Plan, ReportsByHowMuchItDoesNotFitAndWhatWouldHelp) {
  const std::vector<std::string> options = {
      "--world-size", "8", "--device", "cpu", "--set", "sharding.sharding_strategy=NO_SHARD"};
  const nlohmann::json roomy = planned(example_recipe(), options);
  const auto whole = roomy["plans"][0]["bytes"]["total"].get<std::uint64_t>();
  const auto with_memory = [&](std::uint64_t bytes) {
    std::vector<std::string> all = options;
    all.insert(all.end(), {"--device-memory", std::to_string(bytes) + "B"});
    return all;
  };
  EXPECT_EQ(planned(example_recipe(), with_memory(whole))["plans"][0]["fits"], true);
  const nlohmann::json tight = planned(example_recipe(), with_memory(whole - 1), 6);
  EXPECT_EQ(tight["plans"][0]["fits"], false);
  ASSERT_FALSE(tight["advice"].empty());
  for (const nlohmann::json& advice : tight["advice"]) {
    EXPECT_LT(advice["total"].get<std::uint64_t>(), whole);
    // The advice is correct.
    std::vector<std::string> all = with_memory(whole - 1);
    for (const nlohmann::json& change : advice["changes"]) {
      std::istringstream words(change.get<std::string>());
      for (std::string word; words >> word;) all.push_back(word);
    }
    const nlohmann::json followed = planned(example_recipe(), all);
    EXPECT_EQ(followed["plans"][0]["bytes"]["total"], advice["total"]) << advice;
  }
  EXPECT_EQ(tight["advice"][0]["saved"], whole - tight["advice"][0]["total"].get<std::uint64_t>());
  // The cheapest change first: another strategy keeps all bits of the results.
  EXPECT_EQ(tight["advice"][0]["changes"][0], "--set sharding.sharding_strategy=SHARD_OPTIMIZER");

  // For one rank, moving state elsewhere is the only remaining way.
  const auto advice_of_one = [&](const std::string& device, bool offload_params = false) {
    std::vector<std::string> alone = {"--device", device,
                                      "--set",    "data.batch_size=1",
                                      "--set",    "model.n_embd=1536",
                                      "--set",    "sharding.mixed_precision=bf16",
                                      "--set",    "sharding.activation_checkpointing=true"};
    if (offload_params) alone.insert(alone.end(), {"--set", "sharding.offload_params=true"});
    std::vector<std::string> small = alone;
    const nlohmann::json row = planned(example_recipe(), alone)["plans"][0];
    const auto total = row["bytes"]["total"].get<std::uint64_t>();
    const auto moments = row["bytes"]["optimizer"].get<std::uint64_t>();
    small.insert(small.end(), {"--device-memory", std::to_string(total - moments / 2)});
    return planned(example_recipe(), small, 6)["advice"];
  };
  const std::string place = "--set sharding.offload.optimizer=";
  const nlohmann::json on_gpu = advice_of_one("cuda"), on_cpu = advice_of_one("cpu");
  ASSERT_FALSE(on_gpu.empty());
  EXPECT_EQ(on_gpu[0]["changes"], nlohmann::json({place + "host"})) << on_gpu;
  ASSERT_FALSE(on_cpu.empty());
  EXPECT_EQ(on_cpu[0]["changes"],
            nlohmann::json({"--set sharding.offload.folder=FOLDER", place + "file"}))
      << on_cpu;
  // The state of a CPU rank is on the host anyway.
  EXPECT_EQ(advice_of_one("cpu", true), on_cpu);

  // One long sequence: only its division over ranks helps.
  std::vector<std::string> of_long = {"--world-size", "4",
                                      "--device",     "cpu",
                                      "--set",        "model.n_head=4",
                                      "--set",        "model.seq_len=8192",
                                      "--set",        "data.batch_size=1",
                                      "--set",        "sharding.mixed_precision=bf16",
                                      "--set",        "sharding.activation_checkpointing=true"};
  const nlohmann::json one_sequence = planned(example_recipe(), of_long)["plans"][0];
  const auto held = one_sequence["bytes"]["total"].get<std::uint64_t>();
  const auto activations = one_sequence["bytes"]["activations"].get<std::uint64_t>();
  of_long.insert(of_long.end(), {"--device-memory", std::to_string(held - activations / 3)});
  const nlohmann::json divided = planned(example_recipe(), of_long, 6)["advice"];
  ASSERT_FALSE(divided.empty());
  EXPECT_EQ(divided[0]["changes"], nlohmann::json({"--set sharding.context_parallel=2",
                                                   "--set train.gradient_accumulation_steps=2"}))
      << divided;

  std::vector<std::string> hopeless = with_memory(1000);
  hopeless.insert(hopeless.begin(), {"plan", example_recipe()});
  const Ended ended = run_program(hopeless);
  EXPECT_EQ(ended.code, 6);
  EXPECT_NE(ended.out.find("NO_SHARD does not fit: "), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("makes it fit"), std::string::npos) << ended.out;
}

TEST(Plan, ReportsWhetherCpuRanksFitThisMachine) {
  const TrainingFolder folder;
  const std::string json = folder.path("plan.json");
  const Ended fits = run_program(
      {"plan", example_recipe(), "--device", "cpu", "--world-size", "2", "--json", json});
  EXPECT_EQ(fits.code, 0) << fits.out;
  EXPECT_NE(fits.out.find(" has free for each of 2 ranks:\n  FULL_SHARD fits"), std::string::npos)
      << fits.out;
  const nlohmann::json plan = nlohmann::json::parse(read_text(json));
  EXPECT_GT(plan["device_memory"].get<std::uint64_t>(), 100'000'000u);
  EXPECT_EQ(plan["plans"][0]["fits"], true);
  // 2.5 TiB in one rank; more ranks on one host do not help.
  const Ended large = run_program({"plan", example_recipe(), "--device", "cpu", "--set",
                                   "model.n_embd=12288", "--set", "model.n_layer=96"});
  EXPECT_EQ(large.code, 6) << large.out;
  EXPECT_NE(large.out.find(" has free for the rank:\n  FULL_SHARD does not fit: "),
            std::string::npos)
      << large.out;
  // For GPUs there is no memory to compare with.
  const Ended gpu = run_program({"plan", example_recipe(), "--device", "cuda"});
  EXPECT_EQ(gpu.code, 0) << gpu.err;
  EXPECT_EQ(gpu.out.find("has free"), std::string::npos) << gpu.out;
}

struct RefusedPlan {
  std::vector<std::string> options;
  int code;
  std::string message;
};

TEST(Plan, RefusesBadInputInOneLine) {
  const TrainingFolder folder;
  const std::vector<RefusedPlan> cases = {
      {{"--strategy", "FULL_SHRD"}, 2, "did you mean FULL_SHARD?"},
      {{"--world-size", "0"}, 2, "must be a number from 1 to 65536, got 0"},
      {{"--world-size", "65537"}, 2, "must be a number from 1 to 65536, got 65537"},
      {{"--world-size", "many"}, 2, "many"},
      {{"--world-size", "6", "--group-size", "4"}, 3, "4 does not divide the 6 ranks"},
      {{"--world-size", "6", "--set", "sharding.group_size=4"}, 3, "4 does not divide the 6 ranks"},
      {{"--group-size", "0"}, 2, "must be a number of at least 1, got 0"},
      {{"--device-memory", "80 elephants"}, 2, "--device-memory 80 elephants: must be a number"},
      {{"--device-memory", "0"}, 2, "--device-memory 0: must be"},
      {{"--device-memory", "80"}, 2, "--device-memory 80: the unit is missing, as in 80GB"},
      {{"--device-memory", "-1GB"}, 2, "--device-memory -1GB: must be"},
      {{"--json", "/proc/nowhere/plan.json"},
       3,
       "--json /proc/nowhere/plan.json: cannot be written"},
      {{"--json", folder.path("")}, 3, "cannot be written"},
      {{"--device", "tpu"}, 3, "train.device"},
      {{"--device", "cpu", "--world-size", "1000"}, 3, "--device cuda"},
      {{"--set", "train.stps=1"}, 3, "did you mean steps?"},
      {{"--wrld-size", "2"}, 2, "did you mean --world-size?"},
  };
  for (const RefusedPlan& refused : cases) {
    std::vector<std::string> arguments = {"plan", example_recipe()};
    arguments.insert(arguments.end(), refused.options.begin(), refused.options.end());
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, refused.code) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_TRUE(ended.err.starts_with("tessera: error: ")) << ended.err;
    EXPECT_NE(ended.err.find(refused.message), std::string::npos)
        << ended.err << "wanted: " << refused.message;
    EXPECT_EQ(ended.out, "");
  }
}

TEST(Plan, SizesAreReadInCommonNotations) {
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"80GB", 80'000'000'000},
                                                          {"80 GB", 80'000'000'000},
                                                          {"1.5GiB", 1'610'612'736},
                                                          {"512MiB", 536'870'912},
                                                          {"1e9", 1'000'000'000},
                                                          {"123B", 123}}) {
    const nlohmann::json plan =
        planned(example_recipe(), {"--device-memory", text}, bytes > 1e8 ? 0 : 6);
    EXPECT_EQ(plan["device_memory"], bytes) << text;
  }
}

}  // namespace
}  // namespace tessera::planner
