// No output of the program replaces an input, a checkpoint's file or a file of another kind; it
// replaces an empty file and an earlier output of the same kind.
#include <sys/stat.h>

#include "tests/cli/commands/encoder_testing.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::train_arguments;

constexpr const char* another_format = "exists and has another format; name another file";

class KeptFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TrainingFolder>();
    folder_->write("short.txt", testing::sample_text(300));
    folder_->write("lines.txt", testing::lines_of(testing::sentences(5, 3)));
    testing::make_encoder_folder(path("encoder"));
    testing::train(1, folder_->small() + Settings{{"checkpoint.dir", path("out")},
                                                  {"checkpoint.export", path("model")},
                                                  {"log.jsonl", path("out/metrics.jsonl")}});
    fs::copy_file(testing::example_recipe(), path("recipe.yaml"));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string path(const std::string& name) { return folder_->path(name); }

  // `command` with a file as its output, without that file.
  using Command = std::vector<std::string>;
  static Command plan(const std::string& option) {
    return {"plan", path("recipe.yaml"), "--device-memory", "1TB", option};
  }
  static Command tokenize(bool lines) {
    Command command = {"tokenize", path("short.txt"), "--tokenizer", "bytes"};
    if (lines) command.emplace_back("--lines");
    command.emplace_back(lines ? "--json" : "--out");
    return command;
  }
  static Command generate() {
    return {"generate", path("out"), "--prompt", "ga", "--max-new-tokens", "1", "--logits"};
  }
  static Command evaluate() {
    return {"evaluate",        path("out"), "--task", "perplexity", "--data",
            path("short.txt"), "--device",  "cpu",    "--json"};
  }
  static Command encode() {
    return {"encode", path("encoder"), "--device", "cpu", "--input", path("lines.txt"), "--out"};
  }
  static Ended with_output(Command command, const std::string& file) {
    command.push_back(file);
    return run_program(command);
  }
  // Refused with one line; the file keeps its bytes.
  static void expect_kept(const Command& command, const std::string& file, int code,
                          const std::string& message) {
    const std::string before = read_text(file);
    const Ended ended = with_output(command, file);
    EXPECT_EQ(ended.code, code) << command.front() << ": " << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(read_text(file), before) << command.front();
    EXPECT_EQ(ended.out, "");
  }

  static std::unique_ptr<testing::TrainingFolder> folder_;
};
std::unique_ptr<testing::TrainingFolder> KeptFiles::folder_;

TEST_F(KeptFiles, AnInputIsNotReplaced) {
  for (const char* option : {"--json", "--html"}) {
    expect_kept(plan(option), path("recipe.yaml"), 2, "would replace " + path("recipe.yaml"));
  }
  fs::create_symlink(path("recipe.yaml"), path("link.yaml"));
  expect_kept(plan("--json"), path("link.yaml"), 2, "would replace " + path("recipe.yaml"));
  expect_kept({"bench", path("recipe.yaml"), "--json"}, path("recipe.yaml"), 2, "would replace");
  expect_kept(evaluate(), path("short.txt"), 2, "would replace " + path("short.txt"));
  expect_kept(tokenize(false), path("short.txt"), 2, "would replace " + path("short.txt"));
  expect_kept({"inspect", path("model/model.safetensors"), "--json"},
              path("model/model.safetensors"), 2, "would replace ");
}

TEST_F(KeptFiles, AFileOfAnotherKindIsNotReplaced) {
  folder_->write("other.npy", "\x93NUMPY\x01 by another program");
  const std::vector<std::pair<Command, std::string>> cases = {
      {plan("--json"), "text.txt"},
      {plan("--html"), "text.txt"},
      {{"plan", "--calibrate"}, "recipe.yaml"},
      {tokenize(false), "text.txt"},
      {tokenize(true), "text.txt"},
      {{"inspect", path("out"), "--json"}, "out/metrics.jsonl"},
      {{"verify", path("out"), "--json"}, "out/metrics.jsonl"},
      {{"convert", path("out"), path("converted"), "--to", "hf", "--json"}, "text.txt"},
      {generate(), "model/model.safetensors"},
      {evaluate(), "out/metrics.jsonl"},
      {encode(), "other.npy"},
      {encode(), "model/model.safetensors"},
  };
  for (const auto& [command, file] : cases) expect_kept(command, path(file), 3, another_format);
  EXPECT_FALSE(fs::exists(path("converted")));
}

// It would be a file of that name, where other programs write to standard output.
TEST_F(KeptFiles, ADashIsNoFile) {
  const std::string message =
      " -: this option takes the name of a file: /dev/stdout for standard "
      "output, ./- for a file called -";
  const std::vector<Command> commands = {
      plan("--json"),
      plan("--html"),
      {"plan", "--calibrate"},
      tokenize(false),
      tokenize(true),
      {"tokenize", path("short.txt"), "--tokenizer", "bytes", "--shard", "1/2", "--out"},
      {"inspect", path("out"), "--json"},
      {"verify", path("out"), "--json"},
      {"diff", path("model"), path("model"), "--json"},
      {"convert", path("out"), path("converted"), "--to", "hf", "--json"},
      {"bench", path("recipe.yaml"), "--json"},
      {"bench", path("recipe.yaml"), "--html"},
      {"config", "default", "--config-file"},
      generate(),
      evaluate(),
      encode()};
  for (const Command& command : commands) {
    const Ended ended = with_output(command, "-");
    EXPECT_EQ(ended.code, 2) << command.front() << ended.err;
    EXPECT_NE(ended.err.find(command.back() + message), std::string::npos)
        << command.front() << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
  const Ended converted = run_program({"convert", path("out"), "-", "--to", "hf"});
  EXPECT_EQ(converted.code, 2) << converted.err;
  EXPECT_NE(converted.err.find("no checkpoint is written to standard output"), std::string::npos);
  EXPECT_FALSE(fs::exists("-"));
  EXPECT_FALSE(fs::exists(path("converted")));
  const Ended streamed = run_program({"inspect", path("out"), "--json", "/dev/stdout"});
  EXPECT_EQ(streamed.code, 0) << streamed.err;
  EXPECT_NE(streamed.out.find("\"report\""), std::string::npos) << streamed.out;
}

TEST_F(KeptFiles, ARunReplacesNeitherItsRecipeNorItsData) {
  for (const std::string file : {"recipe.yaml", "text.txt"}) {
    for (const char* key : {"log.memory", "log.summary", "log.trace", "log.jsonl", "log.csv"}) {
      const std::string before = read_text(path(file));
      const Ended ended = run_program(
          train_arguments(folder_->small() + Settings{{key, path(file)}}, path("recipe.yaml")));
      EXPECT_EQ(ended.code, 3) << key << ": " << ended.err;
      EXPECT_NE(ended.err.find("name another file"), std::string::npos) << ended.err;
      EXPECT_EQ(read_text(path(file)), before) << key;
    }
  }
}

TEST_F(KeptFiles, NothingIsWrittenIntoACheckpoint) {
  const std::string step = path("out/step-3/");
  const std::string message = "lies in the checkpoint " + path("out/step-3");
  for (const std::string file : {"model.safetensors", "manifest.json", "new.json"}) {
    expect_kept({"inspect", path("out"), "--json"}, step + file, 3, message);
    expect_kept(generate(), step + file, 3, message);
  }
  const Ended ended =
      run_program(train_arguments(folder_->small() + Settings{{"log.jsonl", step + "m.jsonl"}}));
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
  EXPECT_FALSE(fs::exists(step + "new.json"));
  EXPECT_FALSE(fs::exists(step + "m.jsonl"));
  EXPECT_EQ(run_program({"verify", path("out")}).code, 0);
}

// Reports of a model may lie beside its weights.
TEST_F(KeptFiles, AHuggingFaceFolderMayTakeAReport) {
  ASSERT_EQ(run_program({"convert", path("out"), path("hf"), "--to", "hf"}).code, 0);
  EXPECT_EQ(run_program({"inspect", path("hf"), "--json", path("hf/report.json")}).code, 0);
  const Ended again = run_program({"convert", path("hf"), path("again"), "--to", "hf"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(fs::exists(path("again/report.json")));
  expect_kept({"inspect", path("hf"), "--json"}, path("hf/config.json"), 3, "has another format");
}

TEST_F(KeptFiles, TwoOutputsNeedTwoFiles) {
  Command both = plan("--json");
  both.insert(both.end(), {path("both"), "--html"});
  expect_kept(both, path("both"), 3, "--html " + path("both") + ": is the same file as --json");
  EXPECT_FALSE(fs::exists(path("both")));
}

TEST_F(KeptFiles, AnEmptyFileAndAnEarlierOutputAreReplaced) {
  const std::vector<std::pair<Command, std::string>> cases = {
      {plan("--json"), "p.json"},
      {plan("--html"), "p.html"},
      {tokenize(false), "t.tokens"},
      {tokenize(true), "t.json"},
      {{"inspect", path("out"), "--json"}, "i.json"},
      {{"verify", path("out"), "--json"}, "v.json"},
      {generate(), "l.safetensors"},
      {evaluate(), "e.json"},
      {encode(), "e.npy"},
      {encode(), "e.safetensors"},
  };
  for (const auto& [command, file] : cases) {
    folder_->write(file, "");
    for (const char* what : {"an empty file", "an earlier output"}) {
      const Ended ended = with_output(command, path(file));
      EXPECT_EQ(ended.code, 0) << file << " over " << what << ": " << ended.err;
      EXPECT_GT(fs::file_size(path(file)), 0u) << file;
    }
  }
  const Settings logs = {{"log.memory", path("m.json")}, {"log.summary", path("s.json")}};
  for (int run = 0; run < 2; ++run) testing::train(1, folder_->small() + logs);
}

TEST_F(KeptFiles, DevicesStayDevices) {
  struct stat before {};
  ASSERT_EQ(::stat("/dev/null", &before), 0);
  for (const Command& command : {plan("--json"), evaluate(), generate(), tokenize(true)}) {
    EXPECT_EQ(with_output(command, "/dev/null").code, 0) << command.front();
    const Ended full = with_output(command, "/dev/full");
    EXPECT_EQ(full.code, 5) << command.front() << ": " << full.err;
    EXPECT_NE(full.err.find(" /dev/full: cannot be written: "), std::string::npos) << full.err;
  }
  // A stream of tokens is not written from its beginning to its end.
  const Ended tokens = with_output(tokenize(false), "/dev/null");
  EXPECT_EQ(tokens.code, 3) << tokens.err;
  EXPECT_NE(tokens.err.find("needs a regular file"), std::string::npos) << tokens.err;
  struct stat after {};
  ASSERT_EQ(::stat("/dev/null", &after), 0);
  EXPECT_TRUE(S_ISCHR(after.st_mode));
  EXPECT_EQ(after.st_ino, before.st_ino);
}

}  // namespace
}  // namespace tessera::cli
