// Runs that train adapters over a base of codes (model.quantize_base): every strategy and world,
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
class Qlora : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TrainingFolder>();
    testing::train(1, folder_->small() +
                          Settings{{"checkpoint.dir", path("base")}, {"checkpoint.every", "3"}});
    const Ended ended = run_program({"convert", path("base/step-3"), path("plain"), "--to", "hf"});
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::string base() { return path("base/step-3"); }

  static std::string recipe() {
    return fs::path(testing::example_recipe()).replace_filename("lora.yaml").string();
  }
  static Settings small(const std::string& name, int steps, const std::string& format = "nf4") {
    return {{"model.pretrained", base()},
            {"model.quantize_base", format},
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

  static std::unique_ptr<TrainingFolder> folder_;
};
std::unique_ptr<TrainingFolder> Qlora::folder_;

TEST_F(Qlora, ResumesUnderOtherStrategiesAndWorlds) {
  train(2, small("whole", 6));
  const auto whole = losses_in(path("whole.jsonl"));
  train(2, small("half", 3));
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string name = strategy.at("sharding.sharding_strategy");
    fs::copy(path("half"), path(name), fs::copy_options::recursive);
    fs::copy(path("half.jsonl"), path(name + ".jsonl"));
    const Ended ended = train(2, small(name, 6) + strategy);
    EXPECT_NE(ended.err.find("resumed from " + path(name + "/step-3")), std::string::npos)
        << ended.err;
    EXPECT_EQ(losses_in(path(name + ".jsonl")), whole) << name;
  }
  fs::copy(path("half"), path("other"), fs::copy_options::recursive);
  fs::copy(path("half.jsonl"), path("other.jsonl"));
  train(3, small("other", 6) + Settings{{"data.batch_size", "4"}});
  testing::expect_close(path("other.jsonl"), path("whole.jsonl"), 2e-2);
}

// The same weights in a step and in a plain folder, recomputation, offloading, and saves beside the
// training change no bit.
TEST_F(Qlora, WhereTheBaseIsReadFromAndKeptChangesNoBit) {
  for (const char* format : {"nf4", "int8"}) {
    const std::string name = format;
    train(2, small(name, 4, format));
    const auto wanted = losses_in(path(name + ".jsonl"));
    train(2, small(name + "-plain", 4, format) +
                 Settings{{"model.pretrained", path("plain")},
                          {"sharding.activation_checkpointing", "true"},
                          {"checkpoint.async", "true"}});
    EXPECT_EQ(losses_in(path(name + "-plain.jsonl")), wanted);
    train(2, small(name + "-files", 4, format) +
                 Settings{{"sharding.offload.parameters", "file"},
                          {"sharding.offload.folder", path(name + "-of-ranks")}});
    EXPECT_EQ(losses_in(path(name + "-files.jsonl")), wanted);
  }
  EXPECT_NE(losses_in(path("nf4.jsonl")), losses_in(path("int8.jsonl")));
}

TEST_F(Qlora, TheLossFallsAsFastAsOverAWholeBase) {
  const Settings more = {{"train.lr", "1.0e-2"}};
  train(2, small("over-codes", 40) + more);
  train(2, small("over-whole", 40, "none") + more);
  const auto codes = testing::metrics_in(path("over-codes.jsonl"));
  const auto whole = testing::metrics_in(path("over-whole.jsonl"));
  const auto loss = [](const nlohmann::json& line) { return line.at("loss").get<double>(); };
  EXPECT_LT(loss(whole.back()), loss(whole.front()) - 0.2);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    EXPECT_NEAR(loss(codes[i]), loss(whole[i]), 0.03) << i;
  }
}

TEST_F(Qlora, TextAndScoresAreThoseOfTheMergedModel) {
  for (const char* format : {"nf4", "int8"}) {
    const std::string name = std::string("text-") + format;
    train(2, small(name, 20, format) + Settings{{"sharding.mixed_precision", "no"}});
    const std::string step = path(name + "/step-20"), merged = path(name + "-merged");
    output({"convert", step, merged, "--to", "hf", "--merge", "--verify"});
    const auto text = [](const std::string& folder) {
      return output({"generate", folder, "--prompt", "gather", "--max-new-tokens", "30"});
    };
    EXPECT_EQ(text(step), text(merged));
    EXPECT_NEAR(loss_of(step), loss_of(merged), 1e-5);
    EXPECT_LT(loss_of(step), loss_of(base()) - 0.01);
    // Without its manifest it is PEFT's folder, which does not know of codes.
    const std::string alone = path(name + "-alone");
    fs::create_directory(alone);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
      fs::copy(fs::path(step) / file, fs::path(alone) / file);
    }
    EXPECT_NE(loss_of(alone), loss_of(step));
    EXPECT_NEAR(loss_of(alone), loss_of(step), 0.05);
  }
}

TEST_F(Qlora, AnAdapterIsTrainedFurtherOverItsCodes) {
  train(1, small("before", 5));
  const Settings settings = small("after", 2) + Settings{{"model.adapter", path("before/step-5")},
                                                         {"model.quantize_base", "null"},
                                                         {"model.lora.target_modules", "null"},
                                                         {"model.lora.r", "null"},
                                                         {"model.lora.alpha", "null"},
                                                         {"model.lora.dropout", "null"}};
  train(1, settings);
  train(1, settings + Settings{{"model.quantize_base", "nf4"},
                               {"checkpoint.dir", path("given")},
                               {"log.jsonl", path("given.jsonl")}});
  EXPECT_EQ(losses_in(path("after.jsonl")), losses_in(path("given.jsonl")));
  train(1, settings + Settings{{"model.quantize_base", "none"},
                               {"checkpoint.dir", path("over-weights")},
                               {"log.jsonl", path("over-weights.jsonl")}});
  EXPECT_NE(losses_in(path("after.jsonl")), losses_in(path("over-weights.jsonl")));
  // The step went on over the codes of the adapter's folder, which its recipe does not show.
  const Settings further = {{"train.steps", "4"}, {"checkpoint.dir", path("after")}};
  const Settings key_alone = small("after", 4) + further;
  for (const Settings& other : {key_alone + Settings{{"model.quantize_base", "null"}},
                                settings + further + Settings{{"model.quantize_base", "none"}}}) {
    const Ended refused = run(1, other);
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_NE(refused.err.find("was trained with model.quantize_base nf4, and this run has none"),
              std::string::npos)
        << refused.err;
  }
  const auto goes_on = [](const Settings& same) {
    const Ended ended = train(1, same);
    EXPECT_NE(ended.err.find("resumed from"), std::string::npos) << ended.err;
  };
  goes_on(key_alone);
  // And from the key to the folder.
  goes_on(settings + Settings{{"train.steps", "4"}, {"checkpoint.dir", path("given")}});
}

TEST_F(Qlora, AResumeWithOtherPatternsIsRefused) {
  const auto with = [](const std::string& alphas, int steps) {
    return small("patterns", steps) + Settings{{"model.lora.alpha_pattern", alphas}};
  };
  train(1, with("{c_attn: 5.0}", 2));
  // The same adapter in a folder, with another factor for some layers.
  const std::string other = path("other-patterns");
  fs::copy(path("patterns/step-2"), other);
  fs::remove(fs::path(other) / "manifest.json");
  const fs::path config = fs::path(other) / "adapter_config.json";
  nlohmann::json changed = nlohmann::json::parse(testing::read_text(config.string()));
  changed["alpha_pattern"] = {{"c_attn", 7.0}};
  std::ofstream(config) << changed.dump();
  const Ended refused =
      run(1, small("patterns", 4) + Settings{{"model.adapter", other},
                                             {"model.lora.target_modules", "null"},
                                             {"model.lora.r", "null"},
                                             {"model.lora.alpha", "null"},
                                             {"model.lora.dropout", "null"}});
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_NE(refused.err.find("alpha_pattern {\"c_attn\":5.0}, and this one has"), std::string::npos)
      << refused.err;
  train(1, with("{c_attn: 5.0}", 4));
}

TEST_F(Qlora, MemoryIsAsPlanned) {
  for (const char* format : {"nf4", "int8"}) {
    for (const Settings& strategy : testing::all_strategies({2})) {
      const std::string file = path("memory.json");
      fs::remove(file);
      const Ended ended = train(
          2, small("memory", 3, format) + strategy +
                 Settings{
                     {"log.memory", file}, {"checkpoint.dir", "null"}, {"checkpoint.every", "0"}});
      EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
      const auto log = nlohmann::json::parse(testing::read_text(file));
      for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
        EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
      }
      EXPECT_EQ(log["planned"]["activations"], log["measured"]["activations"]);
    }
  }
}

struct RefusedBase {
  Settings settings;
  int code;
  std::string message;
};

TEST_F(Qlora, InvalidSettingsAreRefusedInOneLine) {
  const Settings no_lora = {{"model.lora.target_modules", "null"},
                            {"model.lora.r", "null"},
                            {"model.lora.alpha", "null"},
                            {"model.lora.dropout", "null"}};
  train(1, small("kept", 2));
  const std::string kept = path("kept");
  const std::vector<RefusedBase> cases = {
      {{{"model.quantize_base", "fp4"}},
       3,
       "model.quantize_base must be one of none | nf4 | int8, got fp4"},
      {no_lora, 3, "model.quantize_base is for frozen weights under adapters"},
      {{{"model.pretrained", "null"}, {"checkpoint.dir", "null"}, {"checkpoint.every", "0"}},
       3,
       "model.quantize_base needs model.pretrained"},
      {{{"load_in_4bit", "true"}}, 3, "model.quantize_base"},
      {{{"checkpoint.dir", kept}, {"train.steps", "4"}, {"model.quantize_base", "int8"}},
       3,
       "was trained with model.quantize_base nf4, and this run has model.quantize_base int8"},
      {{{"checkpoint.dir", kept}, {"train.steps", "4"}, {"model.quantize_base", "null"}},
       3,
       "was trained with model.quantize_base nf4"},
  };
  for (const RefusedBase& refused : cases) {
    const Ended ended = run(1, small("refused", 1) + refused.settings);
    EXPECT_EQ(ended.code, refused.code) << ended.err;
    EXPECT_NE(ended.err.find(refused.message), std::string::npos)
        << ended.err << "wanted: " << refused.message;
    EXPECT_FALSE(fs::exists(path("refused"))) << ended.err;
    EXPECT_FALSE(fs::exists(path("kept/step-4"))) << ended.err;
  }
}

}  // namespace
}  // namespace tessera::training
