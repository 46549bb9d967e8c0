// A language model with a tokenizer, from text to text: a small examples/gpt2-text.yaml.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

class TextExample : public ::testing::Test {
 protected:
  TextExample() {
    const fs::path source = fs::path(testing::example_recipe()).parent_path().parent_path();
    recipe_ = (source / "examples/gpt2-text.yaml").string();
    fs::create_directories(folder_.path("tokenizer"));
    fs::copy_file(source / "tests/tokenizers/fixtures/gpt2.json",
                  folder_.path("tokenizer/tokenizer.json"));
  }
  [[nodiscard]] Ended train(const Settings& settings) const {
    const Settings all = folder_.small() +
                         Settings{{"model.n_head", "4"},
                                  {"data.tokenizer", folder_.path("tokenizer")},
                                  {"checkpoint.dir", folder_.path("saves")}} +
                         settings;
    return run_program(testing::launched(2, testing::train_arguments(all, recipe_)));
  }

  TrainingFolder folder_;
  std::string recipe_;
};

TEST_F(TextExample, TrainsSavesItsTokenizerAndGenerates) {
  const Ended trained = train({});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string step = folder_.path("saves/step-3");
  EXPECT_EQ(testing::read_text(step + "/tokenizer.json"),
            testing::read_text(folder_.path("tokenizer/tokenizer.json")));
  const auto config = nlohmann::json::parse(testing::read_text(step + "/config.json"));
  EXPECT_EQ(config.at("vocab_size"), 560);

  const Ended written = run_program(
      {"generate", folder_.path("saves"), "--prompt", "shard tile", "--max-new-tokens", "4"});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_TRUE(written.out.starts_with("shard tile")) << written.out;

  // A text is read with the tokenizer of the pretrained folder; another one is refused.
  const auto further = [&](const Settings& settings) {
    const Settings all = Settings{{"model.pretrained", step},
                                  {"model.seq_len", "64"},
                                  {"data.train", folder_.path("text.txt")},
                                  {"data.batch_size", "2"},
                                  {"train.steps", "1"},
                                  {"log.jsonl", folder_.path("log.jsonl")},
                                  {"checkpoint.dir", folder_.path("further")}} +
                         settings;
    const std::string fine_tune = fs::path(recipe_).replace_filename("fine-tune.yaml").string();
    return run_program(testing::train_arguments(all, fine_tune));
  };
  const Ended went_on = further({});
  EXPECT_EQ(went_on.code, 0) << went_on.err;
  const Ended of_bytes = further({{"data.tokenizer", "bytes"}});
  EXPECT_NE(of_bytes.code, 0);
  EXPECT_NE(of_bytes.err.find("has learnt 560 of another tokenizer"), std::string::npos)
      << of_bytes.err;
}

}  // namespace
}  // namespace tessera::training
