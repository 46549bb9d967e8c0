// A cause has the same exit code in every command.
#include "tests/cli/commands/encoder_testing.h"
#include "tests/cli/disk_testing.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::run_program;
using testing::Settings;
using testing::train_arguments;

void expect_code(const Ended& ended, int code, const std::string& message) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err << "wanted: " << message;
}

// An encoder, the steps of a language model, and sentences.
class ExitCodes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TrainingFolder>();
    testing::make_encoder_folder(path("encoder"));
    folder_->write("lines.txt", testing::lines_of(testing::sentences(400, 3)));
    folder_->write("pairs.tsv", "a\tb\t1\nc\td\t2\n");
    testing::train(1, folder_->small() + Settings{{"checkpoint.dir", path("steps")}});
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::vector<std::string> encode(const std::string& model, const std::string& out) {
    return {"encode", model, "--input", path("lines.txt"), "--out", out, "--device", "cpu"};
  }
  static std::vector<std::string> evaluate(const std::string& model, const std::string& task) {
    if (task == "perplexity") {
      return {"evaluate", model, "--task", task, "--data", path("text.txt"), "--device", "cpu"};
    }
    return {"evaluate",        model,       "--task", task,       "--data",
            path("pairs.tsv"), "--columns", "1,2,3",  "--device", "cpu"};
  }
  static std::unique_ptr<testing::TrainingFolder> folder_;
};
std::unique_ptr<testing::TrainingFolder> ExitCodes::folder_;

TEST_F(ExitCodes, AFullDiskIsFiveEverywhere) {
  expect_code(run_program({"plan", testing::example_recipe(), "--device-memory", "1TB", "--json",
                           "/dev/full"}),
              5, "--json /dev/full: cannot be written: write failed: No space left");
  const testing::SmallDisk disk(path("disk"), "16k");
  if (!disk.mounted()) GTEST_SKIP() << "no file system can be mounted";
  const std::string full = "No space left on device";
  expect_code(run_program({"tokenize", path("text.txt"), "--tokenizer", "bytes", "--out",
                           path("disk/t.bin")}),
              5, full);
  expect_code(run_program({"tokenize", path("text.txt"), "--tokenizer", "bytes", "--lines",
                           "--json", path("disk/t.json")}),
              5, full);
  expect_code(run_program(encode(path("encoder"), path("disk/e.npy"))), 5, full);
  expect_code(run_program({"plan", testing::example_recipe(), "--device-memory", "1TB", "--html",
                           path("disk/p.html")}),
              5, full);
  expect_code(run_program({"convert", path("steps"), path("disk/out"), "--to", "hf"}), 5, "free");
  // A text that fills what is left: folders can be made, and no byte of a file fits.
  folder_->write("disk/filler", std::string(64 * 1024, 'x'));
  const Ended test = run_program({"test"}, {{"TMPDIR", path("disk")}});
  EXPECT_EQ(test.code, 5) << test.err << test.out;
  EXPECT_NE((test.err + test.out).find("TMPDIR"), std::string::npos) << test.err << test.out;
  expect_code(run_program({"launch", "--log-dir", path("disk/logs"), "--", "echo", "hi"}), 5,
              "--log-dir");
  const Ended memory = run_program(
      train_arguments(folder_->small() + Settings{{"log.memory", path("disk/m.json")}}));
  EXPECT_EQ(memory.code, 5) << memory.err;
  EXPECT_NE(memory.err.find("log.memory: " + path("disk/m.json")), std::string::npos);
  fs::remove(path("disk/filler"));
  fs::remove_all(path("disk/logs"));
  for (const auto& entry : fs::directory_iterator(path("disk"))) {
    ADD_FAILURE() << entry.path() << " was left behind";
  }
}

TEST_F(ExitCodes, AnUnwritablePathIsThreeBeforeTheWork) {
  expect_code(run_program({"tokenize", path("text.txt"), "--tokenizer", "bytes", "--out",
                           path("none/t.bin")}),
              3, "none/t.bin");
  expect_code(run_program(encode(path("encoder"), path("none/e.npy"))), 3, "none/e.npy");
  expect_code(run_program(train_arguments(folder_->small() + Settings{{"log.csv", "/proc/no/m"}})),
              3, "/proc/no/m");
}

TEST_F(ExitCodes, AMissingModelFolderIsFiveEverywhere) {
  const std::string none = path("nowhere");
  const std::string message = none + ": no such folder";
  expect_code(run_program({"generate", none, "--prompt", "a"}), 5, message);
  expect_code(run_program(encode(none, path("e.npy"))), 5, message);
  for (const char* task : {"similarity", "perplexity"}) {
    expect_code(run_program(evaluate(none, task)), 5, message);
  }
  folder_->write("r.yaml",
                 "model: {pretrained: " + none + "}\ndata: {train: " + path("text.txt") + "}\n");
  expect_code(run_program({"train", path("r.yaml")}), 5, message);
  expect_code(run_program({"plan", path("r.yaml")}), 5, message);
}

TEST_F(ExitCodes, AModelOfTheOtherKindIsNamedAsSuch) {
  const std::string language_model = "the model is a language model (gpt2)";
  expect_code(run_program(encode(path("steps"), path("e.npy"))), 3, language_model);
  for (const char* task : {"similarity", "accuracy", "triplet"}) {
    expect_code(run_program(evaluate(path("steps"), task)), 3, language_model);
  }
  expect_code(run_program(evaluate(path("encoder"), "perplexity")), 3,
              "the model is an encoder of texts (bert), but this task needs a language model");
  expect_code(run_program({"generate", path("encoder"), "--prompt", "a"}), 3,
              "\"bert\" is an encoder of texts; a language model is required here");
}

TEST_F(ExitCodes, VerifyDistinguishesAMissingStepFromDamage) {
  fs::create_directory(path("plain"));
  folder_->write("plain/notes.txt", "not a checkpoint");
  const auto verify = [](const std::string& what) {
    const Ended ended = run_program({"verify", what});
    EXPECT_EQ(ended.code, 5) << ended.out;
    return ended.out;
  };
  EXPECT_NE(verify(path("plain")).find("plain: no checkpoint is there\n"), std::string::npos);
  EXPECT_NE(verify(path("text.txt")).find("text.txt: no checkpoint is there\n"), std::string::npos);
  // An unreadable manifest is damage, and so is a step without one.
  folder_->write("plain/manifest.json", "{");
  EXPECT_NE(verify(path("plain")).find("damaged (unknown)"), std::string::npos);
  fs::create_directory(path("plain/step-7"));
  EXPECT_NE(verify(path("plain/step-7")).find("damaged (unknown)"), std::string::npos);
  folder_->write("half.pt", "PK");
  EXPECT_NE(verify(path("half.pt")).find("damaged"), std::string::npos);
}

TEST_F(ExitCodes, PerplexityCountsWholeTokens) {
  const Ended ended = run_program(evaluate(path("steps"), "perplexity"));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("  tokens               19999\n"), std::string::npos) << ended.out;
}

}  // namespace
}  // namespace tessera::cli
