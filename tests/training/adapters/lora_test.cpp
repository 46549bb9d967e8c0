// Runs that train adapters, with examples/lora.yaml: their checkpoints, resuming, and using the
// adapters.
#include <nlohmann/json.hpp>

#include "bench/harness/products.h"
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

std::string lora_recipe() {
  return fs::path(testing::example_recipe()).replace_filename("lora.yaml").string();
}

// A base model that is trained once for all tests.
class Lora : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TrainingFolder>();
    testing::train(1, folder_->small() +
                          Settings{{"checkpoint.dir", path("base")}, {"checkpoint.every", "3"}});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::string base() { return path("base/step-3"); }

  // Two samples per rank and little work.
  static Settings small_adapter(const std::string& name, int steps) {
    return {{"model.pretrained", base()},
            {"model.seq_len", "64"},
            {"data.train", path("text.txt")},
            {"data.batch_size", "6"},
            {"train.steps", std::to_string(steps)},
            {"train.lr_decay_steps", "50"},
            {"train.lr", "1.0e-2"},
            {"checkpoint.dir", path(name)},
            {"checkpoint.every", "100"},
            {"log.jsonl", path(name + ".jsonl")}};
  }
  static Ended run(int ranks, const Settings& settings) {
    return run_program(testing::launched(ranks, testing::train_arguments(settings, lora_recipe())));
  }
  static Ended train_adapter(int ranks, const Settings& settings) {
    Ended ended = run(ranks, settings);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended;
  }
  static std::string output(const std::vector<std::string>& arguments) {
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  }

  static std::unique_ptr<TrainingFolder> folder_;
};
std::unique_ptr<TrainingFolder> Lora::folder_;

TEST_F(Lora, StepsArePeftFoldersOfTheAdaptersAlone) {
  const Ended ended = train_adapter(2, small_adapter("folder", 2));
  // Two layers of width 64: c_attn 64 -> 192, attn.c_proj 64 -> 64, mlp.c_proj 256 -> 64.
  const int trained = 2 * 8 * ((64 + 192) + (64 + 64) + (256 + 64));
  EXPECT_NE(ended.err.find(std::to_string(trained) + " of them trained"), std::string::npos)
      << ended.err;
  const fs::path step = path("folder/step-2");
  EXPECT_FALSE(fs::exists(step / "model.safetensors"));
  EXPECT_FALSE(fs::exists(step / "config.json"));  // with it, the folder would be a whole model's
  const auto bytes = fs::file_size(step / "adapter_model.safetensors");
  EXPECT_GT(bytes, 4u * trained);
  EXPECT_LT(bytes, 4u * trained + 4096);
  const auto config = nlohmann::json::parse(testing::read_text(step / "adapter_config.json"));
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("r"), 8);
  EXPECT_EQ(config.at("lora_alpha"), 16);
  EXPECT_EQ(config.at("target_modules"), (std::vector<std::string>{"c_attn", "c_proj"}));
  EXPECT_EQ(config.at("fan_in_fan_out"), true);
  EXPECT_EQ(config.at("task_type"), "CAUSAL_LM");
  EXPECT_EQ(config.at("base_model_name_or_path"), base());
  output({"verify", step.string()});
  const std::string listed = output({"inspect", step.string()});
  EXPECT_NE(listed.find("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"),
            std::string::npos)
      << listed;
}

TEST_F(Lora, ResumesUnderOtherStrategiesAndWorlds) {
  train_adapter(2, small_adapter("whole", 6));
  const auto whole = losses_in(path("whole.jsonl"));
  train_adapter(2, small_adapter("half", 3));
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string name = strategy.at("sharding.sharding_strategy");
    fs::copy(path("half"), path(name), fs::copy_options::recursive);
    fs::copy(path("half.jsonl"), path(name + ".jsonl"));
    const Ended ended = train_adapter(2, small_adapter(name, 6) + strategy);
    EXPECT_NE(ended.err.find("resumed from " + path(name + "/step-3")), std::string::npos)
        << ended.err;
    EXPECT_EQ(losses_in(path(name + ".jsonl")), whole) << name;
  }
  fs::copy(path("half"), path("other"), fs::copy_options::recursive);
  fs::copy(path("half.jsonl"), path("other.jsonl"));
  train_adapter(3, small_adapter("other", 6) + Settings{{"data.batch_size", "4"}});
  testing::expect_close(path("other.jsonl"), path("whole.jsonl"), 2e-2);
}

TEST_F(Lora, RecomputationAndAsynchronousSavesChangeNoBit) {
  train_adapter(2, small_adapter("kept-whole", 4));
  train_adapter(
      2, small_adapter("recomputed", 4) + Settings{{"sharding.activation_checkpointing", "true"},
                                                   {"checkpoint.async", "true"},
                                                   {"checkpoint.every", "2"}});
  EXPECT_EQ(losses_in(path("recomputed.jsonl")), losses_in(path("kept-whole.jsonl")));
  const auto saved = [](const std::string& run) {
    return testing::read_text(path(run + "/step-4/adapter_model.safetensors"));
  };
  EXPECT_EQ(saved("recomputed"), saved("kept-whole"));
}

TEST_F(Lora, TextAndScoresAreThoseOfTheMergedModel) {
  train_adapter(2, small_adapter("text", 20) + Settings{{"sharding.mixed_precision", "no"}});
  const std::string step = path("text/step-20");
  output({"convert", step, path("merged"), "--to", "hf", "--merge", "--verify"});
  EXPECT_FALSE(fs::exists(path("merged/adapter_config.json")));
  const auto text = [](const std::string& folder) {
    return output({"generate", folder, "--prompt", "gather", "--max-new-tokens", "30"});
  };
  EXPECT_EQ(text(step), text(path("merged")));
  EXPECT_EQ(text(path("text")), text(path("merged")));  // the newest step
  EXPECT_NE(text(step), text(base()));
  const auto loss = [](const std::string& folder) {
    output({"evaluate", folder, "--data", path("text.txt"), "--task", "perplexity", "--seq-len",
            "64", "--json", path("score.json")});
    const auto found = nlohmann::json::parse(testing::read_text(path("score.json")));
    return found.at("loss").get<double>();
  };
  EXPECT_NEAR(loss(step), loss(path("merged")), 1e-5);
  EXPECT_LT(loss(step), loss(base()) - 0.01);
}

TEST_F(Lora, AnAdapterIsTrainedFurther) {
  train_adapter(1, small_adapter("before", 5));
  Settings settings = small_adapter("after", 2) + Settings{{"model.adapter", path("before/step-5")},
                                                           {"model.lora.target_modules", "null"},
                                                           {"model.lora.r", "null"},
                                                           {"model.lora.alpha", "null"},
                                                           {"model.lora.dropout", "null"}};
  const Ended ended = train_adapter(1, settings);
  EXPECT_NE(ended.err.find("adapter from " + path("before/step-5")), std::string::npos)
      << ended.err;
  const auto first_loss = [](const std::string& name) {
    return testing::metrics_in(path(name)).front().at("loss").get<double>();
  };
  EXPECT_LT(first_loss("after.jsonl"), first_loss("before.jsonl") - 0.02);
}

TEST_F(Lora, MemoryIsAsPlanned) {
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string file = path("memory.json");
    fs::remove(file);
    const Ended ended = train_adapter(
        2,
        small_adapter("memory", 3) + strategy +
            Settings{{"log.memory", file}, {"checkpoint.dir", "null"}, {"checkpoint.every", "0"}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    const auto log = nlohmann::json::parse(testing::read_text(file));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
      EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
    }
    // Moments of the adapters only, whose shard has padding.
    const std::size_t trained = 2 * 8 * ((64 + 192) + (64 + 64) + (256 + 64));
    EXPECT_LT(log["measured"]["optimizer"].get<std::size_t>(), 2 * 4 * trained + 8192);
  }
}

// The work with which `tessera bench` compares a step.
TEST_F(Lora, FrozenMatricesCauseNoWorkForTheirGradients) {
  const auto flops = [](const Settings& more) {
    std::vector<std::string> overrides;
    for (const auto& [key, value] : small_adapter("bench", 1) + more) {
      overrides.push_back(key + "=" + value);
    }
    return bench::model_work(load_recipe(lora_recipe(), overrides)).flops_per_token;
  };
  const double whole = flops({{"model.lora.target_modules", "null"},
                              {"model.lora.r", "null"},
                              {"model.lora.alpha", "null"},
                              {"model.lora.dropout", "null"}});
  const double trained = 2 * 8 * ((64 + 192) + (64 + 64) + (256 + 64));
  EXPECT_EQ(flops({}), whole / 6 * 4 + 6 * trained);
}

struct RefusedAdapter {
  Settings settings;
  int code;
  std::string message;
};

TEST_F(Lora, InvalidSettingsAreRefusedInOneLine) {
  train_adapter(1, small_adapter("there", 2));
  const std::string adapter = path("there/step-2");
  const Settings no_lora = {{"model.lora.target_modules", "null"},
                            {"model.lora.r", "null"},
                            {"model.lora.alpha", "null"},
                            {"model.lora.dropout", "null"}};
  std::vector<RefusedAdapter> cases = {
      {{{"model.lora.r", "0"}}, 3, "model.lora.r must be at least 1 and at most 1048576, got 0"},
      {{{"model.lora.r", "4611686018427387904"}}, 3, "model.lora.r must be"},
      {{{"model.lora.alpha", "0"}}, 3, "model.lora.alpha must be above 0"},
      {{{"model.lora.alpha", "1e300"}}, 3, "model.lora.alpha is 1e+300, too much"},
      {{{"model.lora.dropout", "1"}}, 3, "model.lora.dropout"},
      {{{"model.lora.alpha", "much"}}, 3, "model.lora.alpha"},
      {{{"model.lora.rank", "8"}}, 3, "unknown key model.lora.rank"},
      {{{"model.lora.target_modules", "null"}}, 3, "model.lora.target_modules is missing"},
      {{{"model.lora.target_modules", "[]"}}, 3, "is an empty list"},
      {{{"model.lora.target_modules", "(c"}}, 3, "is not a regular expression"},
      {{{"model.lora.target_modules", "[q_proj]"}},
       3,
       "no linear layer is called \"q_proj\"; there are c_attn, c_fc, c_proj"},
      {{{"model.lora.target_modules", "[wte]"}}, 3, "wte is of class Embedding"},
      {{{"checkpoint.state_dict_type", "SHARDED_STATE_DICT"}}, 3, "checkpoint.state_dict_type"},
      {{{"checkpoint.export", path("exported")}}, 3, "tessera convert --merge"},
      {{{"model.adapter", adapter}}, 3, "leave model.lora out"},
      {no_lora + Settings{{"model.adapter", path("nowhere")}}, 3, "model.adapter"},
      {no_lora + Settings{{"model.pretrained", adapter}}, 3, "name it in model.adapter"},
      {{{"train.parameter_groups", "[{lr: 1}]"}}, 3, "a group needs a pattern"},
      {{{"train.parameter_groups", "[{pattern: .*}]"}}, 3, "has no settings"},
      {{{"train.parameter_groups", "[{pattern: '(', lr: 1}]"}}, 3, "is not a regular expression"},
      {{{"train.parameter_groups", "[{pattern: .*, decay: 1}]"}}, 3, "unknown key decay"},
      {{{"train.parameter_groups", "{pattern: .*}"}}, 3, "a list of groups"},
      {{{"train.parameter_groups", "[{pattern: .*wte.*, lr: 1}]"}},
       3,
       "matches no trained parameter's whole name; a name is as "
       "transformer.h.0.attn.c_attn.lora_A"},
      {{{"train.parameter_groups", "[{pattern: .*, lr: 1}, {pattern: .*lora_B.*, lr: 2}]"}},
       3,
       "\".*lora_B.*\" changes nothing: all that it matches belongs to groups before it"},
  };
  fs::copy(adapter, path("other-r"));
  auto other_r = nlohmann::json::parse(testing::read_text(path("other-r/adapter_config.json")));
  other_r["r"] = 1 << 20;
  std::ofstream(path("other-r/adapter_config.json")) << other_r.dump();
  fs::remove(path("other-r/manifest.json"));  // it would reveal that the config was changed
  cases.push_back(
      {no_lora + Settings{{"model.adapter", path("other-r")}}, 5, "this layer rank 1048576, and"});
  for (const RefusedAdapter& refused : cases) {
    const Ended ended = run_program(
        testing::train_arguments(small_adapter("refused", 1) + refused.settings, lora_recipe()));
    EXPECT_EQ(ended.code, refused.code) << ended.err;
    EXPECT_TRUE(ended.err.starts_with("tessera: error: ")) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(refused.message), std::string::npos)
        << ended.err << "wanted: " << refused.message;
    EXPECT_FALSE(fs::exists(path("refused"))) << ended.err;
  }
  const auto refuse = [](const std::vector<std::string>& arguments, int code,
                         const std::string& message) {
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
    EXPECT_FALSE(fs::exists(path("refused")));
  };
  refuse({"convert", adapter, path("refused"), "--to", "hf"}, 2, "--merge");
  refuse({"convert", base(), path("refused"), "--to", "hf", "--merge"}, 2, "no adapter to merge");
  refuse({"convert", adapter, path("refused"), "--to", "hf", "--merge", "--base", path("none")}, 5,
         "name the base's folder with --base");
  refuse({"generate", base(), "--base", base(), "--prompt", "a"}, 2,
         "no adapter that needs a base");
  refuse({"generate", adapter, "--base", path("none"), "--prompt", "a"}, 5, "--base");
}

// An adapter with another factor would continue as another model.
TEST_F(Lora, AResumeWithAnotherAdapterIsRefused) {
  train_adapter(1, small_adapter("kept", 2));
  const auto refuse = [](const Settings& settings, int code, const std::string& message) {
    const Ended ended = run(1, small_adapter("kept", 4) + settings);
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
    EXPECT_FALSE(fs::exists(path("kept/step-4")));
  };
  refuse({{"model.lora.alpha", "32"}}, 3, "was trained with model.lora.alpha 16");
  refuse({{"model.lora.r", "4"}}, 3,
         "was trained with model.lora.r 8, and this run has model.lora.r 4");
  refuse({{"model.lora.target_modules", "[c_attn]"}}, 3,
         "was trained with model.lora.target_modules [");
  refuse({{"train.parameter_groups", "[{pattern: '.*lora_B.weight', lr: 0.1}]"}}, 3,
         "the run there has the parameter groups []");
  // A whole model's folder has no tensor of an adapter: one line that fits a terminal.
  const Ended ended = run(1, small_adapter("kept", 4) + Settings{{"checkpoint.resume", base()}});
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_NE(ended.err.find("was trained with no model.lora.target_modules"), std::string::npos)
      << ended.err;
  EXPECT_LT(ended.err.size(), 1000u) << ended.err;
}

// As without groups: a checkpoint stores which parameters are in a group, and their decay.
TEST_F(Lora, AResumeWithGroupsMayHaveAnotherRate) {
  const auto groups = [](const std::string& decay) {
    return Settings{{"train.parameter_groups",
                     "[{pattern: '.*lora_B.weight', lr: 0.05, weight_decay: " + decay + "}]"}};
  };
  train_adapter(1, small_adapter("rates", 2) + groups("0.1"));
  const Settings on = small_adapter("rates", 4) + Settings{{"train.lr", "0.003"}};
  const Ended other = run(1, on + groups("0.2"));
  EXPECT_EQ(other.code, 3) << other.err;
  EXPECT_NE(other.err.find("the run there has the parameter groups"), std::string::npos);
  const Ended same = run(1, on + groups("0.1"));
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_TRUE(fs::exists(path("rates/step-4")));
}

TEST_F(Lora, ParameterGroupsGiveTheSameBitsUnderEveryStrategy) {
  const Settings groups = {
      {"train.parameter_groups",
       "[{pattern: '.*lora_B.weight', lr: 0.05, weight_decay: 0.1}, {pattern: '.*h.0.*', lr: 0}]"}};
  std::vector<std::string> expected;
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string name = "groups-" + strategy.at("sharding.sharding_strategy");
    train_adapter(2, small_adapter(name, 4) + strategy + groups);
    const auto losses = losses_in(path(name + ".jsonl"));
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << name;
  }
  // The groups also apply to the update of a segment in pieces.
  train_adapter(2, small_adapter("groups-files", 4) + groups +
                       Settings{{"sharding.offload.optimizer", "file"},
                                {"sharding.offload.parameters", "file"},
                                {"sharding.offload.folder", path("files")}});
  EXPECT_EQ(losses_in(path("groups-files.jsonl")), expected);
  train_adapter(2, small_adapter("plain", 4));
  EXPECT_NE(losses_in(path("plain.jsonl")), expected);
}

}  // namespace
}  // namespace tessera::training
