// Adapters of a sentence encoder, with a softmax head beside it: the contents of a step, resuming,
// and using the adapters.
#include <nlohmann/json.hpp>

#include "tests/cli/commands/encoder_testing.h"
#include "tests/training/sentence_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;

class AdaptedEncoderRun : public ::testing::Test {
 protected:
  AdaptedEncoderRun() {
    testing::make_encoder_folder(folder_.path("base"));
    folder_.write_classes("classes.csv", 30);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
  [[nodiscard]] Settings adapted(const std::string& name, int steps) const {
    return folder_.small() + Settings{{"model.pretrained", path("base")},
                                      {"data.tokenizer", path("base")},
                                      {"data.train", folder_.classes()},
                                      {"model.lora.target_modules", "[query, value, dense]"},
                                      {"model.lora.dropout", "0.1"},
                                      {"train.lr", "1e-2"},
                                      {"train.steps", std::to_string(steps)},
                                      {"checkpoint.dir", path(name)},
                                      {"checkpoint.every", "100"},
                                      {"log.jsonl", path(name + ".jsonl")}};
  }
  static std::string output(const std::vector<std::string>& arguments) {
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  }
  [[nodiscard]] std::string embedded(const std::string& folder) const {
    folder_.write("lines.txt", "shard the tile\na wide mosaic moves\nrank\n");
    output({"encode", folder, "--input", path("lines.txt"), "--out", path("rows.npy")});
    return testing::read_text(path("rows.npy"));
  }

  testing::SentenceFolder folder_;
};

TEST_F(AdaptedEncoderRun, StepsHaveAdaptersAndHeadAndResumeAnywhere) {
  testing::train_sentences(2, adapted("whole", 4));
  const fs::path step = path("whole/step-4");
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors", "modules.json",
                           "1_Pooling/config.json", "classifier/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(step / file)) << file;
  }
  EXPECT_FALSE(fs::exists(step / "model.safetensors"));
  const auto config = nlohmann::json::parse(testing::read_text(step / "adapter_config.json"));
  EXPECT_EQ(config.at("task_type"), "FEATURE_EXTRACTION");
  EXPECT_EQ(config.at("fan_in_fan_out"), false);

  testing::train_sentences(2, adapted("half", 2));
  for (const char* strategy : {"NO_SHARD", "SHARD_GRAD_OP"}) {
    fs::copy(path("half"), path(strategy), fs::copy_options::recursive);
    fs::copy(path("half.jsonl"), path(std::string(strategy) + ".jsonl"));
    testing::train_sentences(
        2, adapted(strategy, 4) + Settings{{"sharding.sharding_strategy", strategy}});
    EXPECT_EQ(losses_in(path(std::string(strategy) + ".jsonl")), losses_in(path("whole.jsonl")))
        << strategy;
  }
}

TEST_F(AdaptedEncoderRun, ItsAdapterIsUsed) {
  for (const std::string dora : {"false", "true"}) {
    const std::string name = "dora-" + dora;
    testing::train_sentences(2, adapted(name, 4) + Settings{{"model.lora.use_dora", dora}});
    const std::string step = path(name + "/step-4");
    EXPECT_NE(embedded(step), embedded(path("base")));
    EXPECT_EQ(embedded(path(name)), embedded(step));
    std::vector<std::string> scores = {
        "evaluate", step,       "--data",   path("classes.csv"), "--columns", "first,second,class",
        "--task",   "accuracy", "--labels", "no,maybe,yes",      "--json",    path("alone.json")};
    output(scores);
    scores.back() = path("ranks.json");
    scores.insert(scores.end(), {"--sharding-strategy", "full_shard"});
    output(testing::launched(2, scores));
    EXPECT_EQ(testing::read_text(path("alone.json")), testing::read_text(path("ranks.json")));
  }
}

// A Sentence Transformers folder with its modules, also if the base is a step.
TEST_F(AdaptedEncoderRun, MergedItIsACompleteEncoder) {
  const Settings whole = {{"model.lora.target_modules", "null"}, {"model.lora.dropout", "null"}};
  testing::train_sentences(1, adapted("whole", 1) + whole);
  const std::pair<std::string, const char*> cases[] = {
      {path("base"), "false"}, {path("base"), "true"}, {path("whole/step-1"), "false"}};
  for (const auto& [base, dora] : cases) {
    testing::train_sentences(
        1, adapted("run", 4) + Settings{{"model.pretrained", base}, {"model.lora.use_dora", dora}});
    const std::string step = path("run/step-4");
    const std::string merged = path("merged");
    output({"convert", step, merged, "--to", "hf", "--merge"});
    EXPECT_TRUE(fs::exists(fs::path(merged) / "1_Pooling/config.json"));
    const std::string apart = embedded(step);
    const std::string together = embedded(merged);
    const std::size_t bytes = sizeof(float) * 3 * 32;
    ASSERT_EQ(apart.size(), together.size());
    ASSERT_GT(apart.size(), bytes);
    std::vector<float> a(3 * 32), b(3 * 32);
    std::memcpy(a.data(), apart.data() + apart.size() - bytes, bytes);
    std::memcpy(b.data(), together.data() + together.size() - bytes, bytes);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4) << base << ": " << i;
    fs::remove_all(path("run"));
    fs::remove_all(merged);
  }
}

// The dropout of a sentence's adapters does not depend on the number of ranks.
TEST_F(AdaptedEncoderRun, DropoutDoesNotDependOnTheRanks) {
  testing::train_sentences(1, adapted("one", 3) + Settings{{"data.batch_size", "4"}});
  testing::train_sentences(2, adapted("two", 3) + Settings{{"data.batch_size", "2"}});
  testing::expect_close(path("two.jsonl"), path("one.jsonl"), 1e-4);
}

}  // namespace
}  // namespace tessera::training
