// Runs with model.lora.use_dora: the contents of their steps, the same bits under every strategy,
// resuming, the memory of a plan, and the uses of the adapter.
#include <nlohmann/json.hpp>

#include <fstream>

#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

// A base model that is trained once for all tests.
class Dora : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TrainingFolder>();
    testing::train(1, folder_->small() +
                          Settings{{"checkpoint.dir", path("base")}, {"checkpoint.every", "3"}});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::string base() { return path("base/step-3"); }
  static std::string recipe() {
    return fs::path(testing::example_recipe()).replace_filename("lora.yaml").string();
  }
  static Settings small(const std::string& name, int steps) {
    return {{"model.pretrained", base()},
            {"model.lora.use_dora", "true"},
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
  // The adapter is that of a folder.
  static Settings further(const std::string& name, int steps, const std::string& adapter) {
    Settings settings = small(name, steps) + Settings{{"model.adapter", adapter}};
    for (const char* key : {"use_dora", "target_modules", "r", "alpha", "dropout"})
      settings[std::string("model.lora.") + key] = "null";
    return settings;
  }
  static Ended run(int ranks, const Settings& settings) {
    return run_program(testing::launched(ranks, testing::train_arguments(settings, recipe())));
  }
  static Ended train(int ranks, const Settings& settings) {
    Ended ended = run(ranks, settings);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended;
  }
  static std::string output(const std::vector<std::string>& arguments) {
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  }
  static double loss_of(const std::string& folder) {
    output({"evaluate", folder, "--data", path("text.txt"), "--task", "perplexity", "--seq-len",
            "64", "--json", path("score.json")});
    return nlohmann::json::parse(testing::read_text(path("score.json"))).at("loss").get<double>();
  }
  static double first_loss(const std::string& name) {
    return testing::metrics_in(path(name + ".jsonl")).front().at("loss").get<double>();
  }

  static std::unique_ptr<TrainingFolder> folder_;
};
std::unique_ptr<TrainingFolder> Dora::folder_;

TEST_F(Dora, StepsHaveMagnitudesBesideTheFactors) {
  const Ended ended = train(2, small("folder", 2));
  // As tests/training/adapters/lora_test.cpp, and an output's magnitude: 192, 64 and 64 of a layer.
  const int trained = 2 * (8 * ((64 + 192) + (64 + 64) + (256 + 64)) + 192 + 64 + 64);
  EXPECT_NE(ended.err.find(std::to_string(trained) + " of them trained"), std::string::npos)
      << ended.err;
  const fs::path step = path("folder/step-2");
  const auto config = nlohmann::json::parse(testing::read_text(step / "adapter_config.json"));
  EXPECT_EQ(config.at("use_dora"), true);
  output({"verify", step.string()});
  const std::string listed = output({"inspect", step.string()});
  EXPECT_NE(listed.find("base_model.model.transformer.h.0.attn.c_attn.lora_magnitude_vector"),
            std::string::npos)
      << listed;
}

// The first loss is that of the base: the magnitudes begin with the norms of its rows.
TEST_F(Dora, EveryStrategyAndResumeHasTheSameBits) {
  train(2, small("whole", 6));
  const auto whole = losses_in(path("whole.jsonl"));
  train(2, small("plain", 1) + Settings{{"model.lora.use_dora", "false"}});
  EXPECT_NEAR(first_loss("whole"), first_loss("plain"), 2e-2);
  train(2, small("half", 3));
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string name = strategy.at("sharding.sharding_strategy");
    train(2, small(name + "-anew", 3) + strategy);
    EXPECT_EQ(losses_in(path(name + "-anew.jsonl")), losses_in(path("half.jsonl"))) << name;
    fs::copy(path("half"), path(name), fs::copy_options::recursive);
    fs::copy(path("half.jsonl"), path(name + ".jsonl"));
    train(2, small(name, 6) + strategy);
    EXPECT_EQ(losses_in(path(name + ".jsonl")), whole) << name;
  }
  fs::copy(path("half"), path("other"), fs::copy_options::recursive);
  fs::copy(path("half.jsonl"), path("other.jsonl"));
  train(3, small("other", 6) + Settings{{"data.batch_size", "4"}});
  testing::expect_close(path("other.jsonl"), path("whole.jsonl"), 2e-2);
}

// Without a base in a folder the weights are drawn, and the magnitudes follow them.
TEST_F(Dora, ANewModelBeginsAsItDoesWithoutMagnitudes) {
  const auto losses = [](const std::string& name, const char* dora) {
    train(2, small(name, 2) + Settings{{"model.pretrained", "null"},
                                       {"model.lora.use_dora", dora},
                                       {"sharding.mixed_precision", "no"},
                                       {"data.tokenizer", "bytes"},
                                       {"checkpoint.dir", "null"},
                                       {"checkpoint.every", "0"}});
    return testing::metrics_in(path(name + ".jsonl"));
  };
  const auto with = losses("drawn", "true"), without = losses("drawn-plain", "false");
  EXPECT_NEAR(with.front().at("loss").get<double>(), without.front().at("loss").get<double>(),
              1e-4);
  EXPECT_NE(with.back().at("loss").get<double>(), without.back().at("loss").get<double>());
}

TEST_F(Dora, RecomputationAndOffloadingChangeNoBit) {
  train(2, small("kept", 4));
  const auto kept = losses_in(path("kept.jsonl"));
  for (const char* how : {"true", "selective"}) {
    const std::string name = std::string("recomputed-") + how;
    train(2, small(name, 4) + Settings{{"sharding.activation_checkpointing", how}});
    EXPECT_EQ(losses_in(path(name + ".jsonl")), kept) << how;
  }
  train(2, small("files", 4) + Settings{{"sharding.offload.parameters", "file"},
                                        {"sharding.offload.optimizer", "file"},
                                        {"sharding.offload.folder", path("files-of-ranks")}});
  EXPECT_EQ(losses_in(path("files.jsonl")), kept);
}

TEST_F(Dora, TextAndScoresAreThoseOfTheMergedModel) {
  train(2, small("text", 20) + Settings{{"sharding.mixed_precision", "no"}});
  const std::string step = path("text/step-20");
  output({"convert", step, path("merged"), "--to", "hf", "--merge", "--verify"});
  const auto text = [](const std::string& folder) {
    return output({"generate", folder, "--prompt", "gather", "--max-new-tokens", "30"});
  };
  EXPECT_EQ(text(step), text(path("merged")));
  EXPECT_NEAR(loss_of(step), loss_of(path("merged")), 1e-5);
  EXPECT_LT(loss_of(step), loss_of(base()) - 0.01);
}

TEST_F(Dora, AnAdapterIsTrainedFurther) {
  train(1, small("before", 5));
  train(2, further("after", 2, path("before/step-5")) + Settings{{"data.batch_size", "3"}});
  EXPECT_LT(first_loss("after"), first_loss("before") - 0.02);
  const fs::path step = path("after/step-2");
  const auto config = nlohmann::json::parse(testing::read_text(step / "adapter_config.json"));
  EXPECT_EQ(config.at("use_dora"), true);
}

TEST_F(Dora, TrainsOverACodedBase) {
  for (const char* format : {"nf4", "int8"}) {
    const std::string name = std::string("codes-") + format;
    const Settings codes = {{"model.quantize_base", format}};
    train(1, small(name, 4) + codes);
    train(2, small(name + "-ranks", 4) + codes + Settings{{"data.batch_size", "3"}});
    testing::expect_close(path(name + "-ranks.jsonl"), path(name + ".jsonl"), 2e-2);
    const std::string step = path(name + "/step-4");
    output({"convert", step, path(name + "-merged"), "--to", "hf", "--merge", "--verify"});
    EXPECT_NEAR(loss_of(step), loss_of(path(name + "-merged")), 1e-4) << format;
  }
}

TEST_F(Dora, MemoryIsAsPlanned) {
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string file = path("memory.json");
    fs::remove(file);
    const Ended ended = train(
        2,
        small("memory", 3) + strategy +
            Settings{{"log.memory", file}, {"checkpoint.dir", "null"}, {"checkpoint.every", "0"}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    const auto log = nlohmann::json::parse(testing::read_text(file));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"})
      EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
  }
}

TEST_F(Dora, InvalidSettingsAreRefusedInOneLine) {
  train(1, small("there", 2));
  const auto refuse = [](const Settings& settings, int code, const std::string& message) {
    const Ended ended = run(1, settings);
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
  };
  refuse(small("refused", 1) + Settings{{"model.lora.use_dora", "much"}}, 3, "model.lora.use_dora");
  refuse(further("refused", 1, path("there/step-2")) + Settings{{"model.lora.use_dora", "true"}}, 3,
         "model.lora.target_modules is missing");
  refuse(small("there", 4) + Settings{{"model.lora.use_dora", "false"}}, 3,
         "was trained with model.lora.use_dora true, and this run has model.lora.use_dora false");
  // A config that does not say what the file has.
  fs::copy(path("there/step-2"), path("other"));
  fs::remove(path("other/manifest.json"));  // it would reveal that the config was changed
  auto config = nlohmann::json::parse(testing::read_text(path("other/adapter_config.json")));
  config["use_dora"] = false;
  std::ofstream(path("other/adapter_config.json")) << config.dump();
  refuse(further("refused", 1, path("other")), 5, "is a magnitude of DoRA, but use_dora of");
  EXPECT_FALSE(fs::exists(path("refused")));
}

}  // namespace
}  // namespace tessera::training
