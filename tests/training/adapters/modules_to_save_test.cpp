// Runs that train whole modules beside adapters: their checkpoints, resuming, merging, and what is
// refused.
#include <nlohmann/json.hpp>

#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

// Two bases that are trained once for all tests: the head of one is tied to its token table.
class SavedModulesRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TrainingFolder>();
    for (const char* tied : {"false", "true"}) {
      const std::string name = tied == std::string("true") ? "tied" : "base";
      testing::train(1, folder_->small() + Settings{{"model.n_layer", "1"},
                                                    {"model.tie_word_embeddings", tied},
                                                    {"train.steps", "1"},
                                                    {"checkpoint.export", path(name)}});
    }
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::string recipe() {
    return fs::path(testing::example_recipe()).replace_filename("lora.yaml").string();
  }
  static Settings saving(const std::string& name, int steps) {
    return {{"model.pretrained", path("base")},
            {"model.seq_len", "64"},
            {"model.lora.target_modules", "[c_attn]"},
            {"model.lora.modules_to_save", "[lm_head, wte, mlp.c_fc]"},
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
    return run_program(testing::launched(ranks, testing::train_arguments(settings, recipe())));
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
  static void expect_refused(const Settings& settings, int code, const std::string& problem) {
    const Ended ended = run(1, saving("refused", 1) + settings);
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(problem), std::string::npos) << ended.err << "wanted: " << problem;
    EXPECT_FALSE(fs::exists(path("refused"))) << ended.err;
  }
  static const Settings& of_folder() {
    static const Settings none{{"model.lora.target_modules", "null"},
                               {"model.lora.modules_to_save", "null"},
                               {"model.lora.r", "null"},
                               {"model.lora.alpha", "null"},
                               {"model.lora.dropout", "null"}};
    return none;
  }

  static std::unique_ptr<TrainingFolder> folder_;
};
std::unique_ptr<TrainingFolder> SavedModulesRun::folder_;

TEST_F(SavedModulesRun, StepsHaveTheirWeightsUnderPeftsNames) {
  const Ended ended = train_adapter(2, saving("folder", 1));
  // Head and table [256, 64], c_fc [64, 256] with its bias, and the adapter of c_attn.
  const int saved = 2 * 256 * 64 + 64 * 256 + 256;
  const int trained = saved + 8 * (64 + 192);
  EXPECT_NE(ended.err.find(std::to_string(trained) + " of them trained"), std::string::npos)
      << ended.err;
  const fs::path step = path("folder/step-1");
  const auto bytes = fs::file_size(step / "adapter_model.safetensors");
  EXPECT_GT(bytes, 4u * trained);  // fp32 masters, while frozen weights are bf16
  EXPECT_LT(bytes, 4u * trained + 4096);
  const auto config = nlohmann::json::parse(testing::read_text(step / "adapter_config.json"));
  EXPECT_EQ(config.at("modules_to_save"), (std::vector<std::string>{"lm_head", "wte", "mlp.c_fc"}));
  const std::string listed = output({"inspect", step.string()});
  for (const char* name : {"lm_head.weight", "transformer.wte.weight",
                           "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_fc.bias"}) {
    EXPECT_NE(listed.find("base_model.model." + std::string(name)), std::string::npos) << listed;
  }
  EXPECT_EQ(listed.find("c_proj.weight"), std::string::npos) << listed;
  output({"verify", step.string()});
}

TEST_F(SavedModulesRun, ResumesUnderOtherStrategiesAndWorlds) {
  train_adapter(2, saving("whole", 4));
  const auto whole = losses_in(path("whole.jsonl"));
  train_adapter(2, saving("half", 2));
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string name = strategy.at("sharding.sharding_strategy");
    fs::copy(path("half"), path(name), fs::copy_options::recursive);
    fs::copy(path("half.jsonl"), path(name + ".jsonl"));
    const Ended ended = train_adapter(2, saving(name, 4) + strategy);
    EXPECT_NE(ended.err.find("resumed from"), std::string::npos) << ended.err;
    EXPECT_EQ(losses_in(path(name + ".jsonl")), whole) << name;
  }
  fs::copy(path("half"), path("other"), fs::copy_options::recursive);
  fs::copy(path("half.jsonl"), path("other.jsonl"));
  train_adapter(3, saving("other", 4) + Settings{{"data.batch_size", "4"}});
  testing::expect_close(path("other.jsonl"), path("whole.jsonl"), 2e-2);
  const Ended other =
      run(1, saving("half", 4) + Settings{{"model.lora.modules_to_save", "[lm_head]"}});
  EXPECT_EQ(other.code, 3) << other.err;
  EXPECT_NE(other.err.find("was trained with model.lora.modules_to_save [\"lm_head\""),
            std::string::npos)
      << other.err;
}

TEST_F(SavedModulesRun, TextAndScoresAreThoseOfTheMergedModel) {
  train_adapter(2, saving("text", 10) + Settings{{"sharding.mixed_precision", "no"}});
  const std::string step = path("text/step-10");
  const std::string report =
      output({"convert", step, path("merged"), "--to", "hf", "--merge", "--verify"});
  EXPECT_NE(report.find("4 tensors of modules_to_save replaced those of the base"),
            std::string::npos)
      << report;
  const auto text = [](const std::string& folder) {
    return output({"generate", folder, "--prompt", "gather", "--max-new-tokens", "30"});
  };
  EXPECT_EQ(text(step), text(path("merged")));
  EXPECT_NE(text(step), text(path("base")));
  const auto loss = [](const std::string& folder) {
    output({"evaluate", folder, "--data", path("text.txt"), "--task", "perplexity", "--seq-len",
            "64", "--json", path("score.json")});
    return nlohmann::json::parse(testing::read_text(path("score.json"))).at("loss").get<double>();
  };
  EXPECT_NEAR(loss(step), loss(path("merged")), 1e-5);
  // Its training continues, and it teaches.
  const auto first_loss = [](const std::string& name) {
    return testing::metrics_in(path(name)).front().at("loss").get<double>();
  };
  train_adapter(1, saving("after", 1) + of_folder() +
                       Settings{{"model.adapter", step}, {"sharding.mixed_precision", "no"}});
  EXPECT_LT(first_loss("after.jsonl"), first_loss("text.jsonl") - 0.2);
  const auto taught = [&](const std::string& name, const std::string& teacher) {
    train_adapter(2, saving(name, 1) +
                         Settings{{"train.teacher", teacher}, {"sharding.mixed_precision", "no"}});
    return first_loss(name + ".jsonl");
  };
  EXPECT_NEAR(taught("by-step", step), taught("by-merged", path("merged")), 1e-4);
}

TEST_F(SavedModulesRun, OverAQuantizedBaseTheyStayFloating) {
  const Settings nf4 = {{"model.quantize_base", "nf4"}, {"sharding.mixed_precision", "no"}};
  train_adapter(2, saving("codes", 2) + nf4);
  output({"convert", path("codes/step-2"), path("of-codes"), "--to", "hf", "--merge"});
  const auto text = [](const std::string& folder) {
    return output({"generate", folder, "--prompt", "gather", "--max-new-tokens", "30"});
  };
  EXPECT_EQ(text(path("codes/step-2")), text(path("of-codes")));
}

TEST_F(SavedModulesRun, MemoryIsAsPlanned) {
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string file = path("memory.json");
    fs::remove(file);
    const Ended ended = train_adapter(
        2,
        saving("memory", 2) + strategy +
            Settings{{"log.memory", file}, {"checkpoint.dir", "null"}, {"checkpoint.every", "0"}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    const auto log = nlohmann::json::parse(testing::read_text(file));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
      EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
    }
  }
}

TEST_F(SavedModulesRun, InvalidSettingsAreRefusedInOneLine) {
  const std::string key = "model.lora.modules_to_save";
  expect_refused({{key, "[score]"}}, 3,
                 key + ": LoRA: modules_to_save: no module's name ends with \"score\"; there are");
  expect_refused({{key, "[h.0.attn]"}}, 3, "attn is trained whole, and target_modules gives");
  expect_refused({{key, "[drop]"}}, 3, "has no parameters; there are");
  expect_refused({{key, "[h]"}}, 3, "transformer.h is a list of modules");
  expect_refused({{key, "{lm_head: 1}"}}, 3, key);
  for (const char* module : {"lm_head", "wte"}) {
    expect_refused({{key, "[" + std::string(module) + "]"}, {"model.pretrained", path("tied")}}, 3,
                   "tie_word_embeddings = false");
  }
  expect_refused({{"model.lora.target_modules", "null"}}, 3,
                 "model.lora.target_modules is missing");
  folder_->write("pairs.jsonl", R"({"prompt": "a", "chosen": "yes", "rejected": "no"})"
                                "\n");
  const Settings dpo = {
      {"train.task", "dpo"}, {"data.train", path("pairs.jsonl")}, {"data.batch_size", "1"}};
  expect_refused(dpo, 3, "train.dpo.reference is missing");
  train_adapter(1, saving("compared", 1) + dpo + Settings{{"train.dpo.reference", path("base")}});
  const Ended ended = run_program(
      {"evaluate", path("compared/step-1"), "--task", "dpo", "--data", path("pairs.jsonl")});
  EXPECT_EQ(ended.code, 2) << ended.err;
  EXPECT_NE(ended.err.find("give --reference the base"), std::string::npos) << ended.err;
  expect_refused(dpo + of_folder() + Settings{{"model.adapter", path("compared/step-1")}}, 3,
                 "train.dpo.reference is missing");
}

}  // namespace
}  // namespace tessera::training
