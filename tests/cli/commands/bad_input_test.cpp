// Every wrong input of a user gives one line that begins with `tessera: error:`, and the exit code
// of its kind, on one rank and on two.
#include <sys/resource.h>

#include <optional>

#include "tests/cli/disk_testing.h"
#include "tests/cli/training_testing.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::damage;
using testing::Ended;
using testing::launched;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

int error_lines(const std::string& text) {
  int count = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    count += line.starts_with("tessera: error: ") ? 1 : 0;
  }
  return count;
}

// Expects one line and no other output: the input was refused before any work began.
void expect_refused(const Ended& ended, int code, const std::string& message) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_EQ(error_lines(ended.err), 1) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err << "wanted: " << message;
  EXPECT_EQ(ended.err.find("internal error"), std::string::npos) << ended.err;
  EXPECT_EQ(ended.out, "");
}

void expect_refused_on_one_and_two(const std::vector<std::string>& arguments, int code,
                                   const std::string& message) {
  expect_refused(run_program(arguments), code, message);
  expect_refused(run_program(launched(2, arguments)), code, message);
}

struct Refused {
  Settings settings;
  int code;
  std::string message;
};

TEST(BadInput, InvalidSettings) {
  const TrainingFolder folder;
  const std::vector<Refused> cases = {
      {{{"train.stps", "5"}}, 3, "unknown key train.stps; did you mean steps?"},
      {{{"data.batch_size", "0"}}, 3, "data.batch_size must be at least 1, got 0"},
      {{{"data.batch_size", "many"}}, 3, "data.batch_size"},
      {{{"model.n_layer", "1000000000"}},
       3,
       "model.n_layer must be at least 1 and at most 10000, got 1000000000"},
      {{{"model.n_embd", "1000000000"}}, 3, "model.n_embd must be at least 1 and at most 1048576"},
      {{{"model.n_head", "3"}}, 3, "model.n_embd = 64 is not a multiple of n_head = 3"},
      {{{"model.n_positions", "32"}}, 3, "model.seq_len"},
      {{{"sharding.sharding_strategy", "FULL_SHRD"}}, 3, "FULL_SHARD"},
      {{{"sharding.sharding_strategy", "HYBRID_SHARD"}, {"sharding.group_size", "5"}},
       3,
       "sharding.group_size 5 does not divide"},
      {{{"sharding.transformer_layer_cls_to_wrap", "NoSuchLayer"}}, 3, "NoSuchLayer"},
      {{{"sharding.activation_checkpointing", "maybe"}}, 3, "false | true | selective, got maybe"},
      {{{"sharding.activation_checkpointing_every", "2"}},
       3,
       "activation_checkpointing_every needs"},
      {{{"sharding.activation_checkpointing", "true"},
        {"sharding.activation_checkpointing_cls", "NoSuchLayer"}},
       3,
       "activation_checkpointing_cls: no module of class NoSuchLayer"},
      {{{"sharding.activation_checkpointing", "true"},
        {"sharding.activation_checkpointing_cls", "ModuleList"}},
       3,
       "has no forward that would be called; name GPT2Block instead"},
      {{{"sharding.activation_checkpointing", "selective"},
        {"sharding.activation_checkpointing_cls", "GPT2Attention,Linear"}},
       3,
       "uses its parameters in a fused operation; name GPT2MLP instead"},
      {{{"checkpoint.every", "5"}}, 3, "needs checkpoint.dir"},
      {{{"model.pretrained", ""}}, 3, "the value is empty; give one, or null to take"},
      {{{"train.steps", ""}}, 3, "--set train.steps=: the value is empty"},
      {{{"checkpoint.resume", "true"}}, 3, "must be auto, never or the path of a checkpoint"},
      {{{"checkpoint.resume", "always"}}, 3, "must be auto, never or the path of a checkpoint"},
      {{{"checkpoint.keep_last", "2"}},
       3,
       "unknown key checkpoint.keep_last; it is checkpoint.keep"},
      {{{"model.hidden_size", "64"}}, 3, "model.architecture is gpt2; it is model.n_embd there"},
      {{{"model.num_attention_heads", "4"}}, 3, "it is model.n_head there"},
      {{{"log.jsonl", "/proc/nowhere/metrics.jsonl"}}, 3, "/proc/nowhere/metrics.jsonl"},
      {{{"log.jsonl", folder.path("text.txt")}}, 3, "is not a step of a run; name another file"},
      {{{"log.memory", "/proc/nowhere/memory.json"}}, 3, "log.memory: /proc/nowhere/memory.json"},
      {{{"log.memory", folder.path("text.txt")}}, 3, "exists and has another format"},
      {{{"log.csv", "/proc/nowhere/m.csv"}}, 3, "log.csv: /proc/nowhere/m.csv cannot be written"},
      {{{"log.csv", folder.path("text.txt")}},
       3,
       "line 1 is not a step of a run; name another file"},
      {{{"log.tensorboard", "/proc/nowhere"}}, 3, "log.tensorboard: /proc/nowhere"},
      {{{"log.tensorboard", folder.path("text.txt")}}, 3, "text.txt is a file; name a folder"},
      {{{"log.summary", "/proc/nowhere/s.json"}}, 3, "log.summary: /proc/nowhere/s.json"},
      {{{"log.summary", folder.path("text.txt")}}, 3, "exists and has another format"},
      {{{"log.summary", folder.path("")}}, 3, "log.summary: "},
      {{{"log.trace", "/proc/nowhere/t.json"}}, 3, "log.trace: /proc/nowhere/t.json"},
      {{{"log.trace", folder.path("text.txt")}}, 3, "is not a trace of a run; name another file"},
      {{{"log.trace", folder.path("")}}, 3, "log.trace: "},
      {{{"log.trace_steps", "[1, 2]"}},
       3,
       "log.trace_steps needs log.trace, the file for the trace"},
      {{{"log.trace", folder.path("t.json")}, {"log.trace_steps", "[3, 1]"}}, 3, "got [3, 1]"},
      {{{"log.trace", folder.path("t.json")}, {"log.trace_steps", "[2, 4]"}},
       3,
       "log.trace_steps [2, 4] goes beyond the 3 steps of train.steps"},
      {{{"log.trace", folder.path("t.json")}, {"log.trace_steps", "[0, 2]"}}, 3, "at least 1"},
      {{{"log.trace", folder.path("t.json")}, {"log.trace_steps", "2"}},
       3,
       "a list of two whole numbers"},
      {{{"checkpoint.dir", folder.path("text.txt")}}, 5, folder.path("text.txt")},
      {{{"checkpoint.dir", "/proc/nowhere"}}, 5, "cannot create folder '/proc/nowhere'"},
      {{{"checkpoint.resume", folder.path("nothing")}}, 5, "no committed checkpoint"},
  };
  for (const Refused& refused : cases) {
    expect_refused_on_one_and_two(train_arguments(folder.small() + refused.settings), refused.code,
                                  refused.message);
  }
}

TEST(BadInput, RecipesThatCannotBeRead) {
  const TrainingFolder folder;
  const std::string data = "data: {train: " + folder.path("text.txt") + "}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {data + "model:\n  n_layr: 2\n", ":3: unknown key model.n_layr; did you mean n_layer?"},
      {data + "modle: {n_layer: 2}\n", ":2: unknown key modle; did you mean model?"},
      {data + "train: {steps: [1,\n", "r.yaml:"},
      {data + "train: {steps: -1}\n", ":2: train.steps"},
      {data + "log: {csv: ''}\n", ":2: log.csv must be a text"},
      {data + "log: {trace: t.json, trace_steps: [1, 2, 3]}\n", "a list of two whole numbers"},
      {data + data, ":2: "},
      {"- a\n- b\n", "must be groups of keys"},
      {"", "empty"},
      {std::string("data: \0", 7), "r.yaml"},
      {"train: {steps: 5}\n", "data.train is missing"},
  };
  for (const auto& [text, message] : cases) {
    folder.write("r.yaml", text);
    expect_refused_on_one_and_two({"train", folder.path("r.yaml")}, 3, message);
  }
  expect_refused_on_one_and_two({"train", folder.path("none.yaml")}, 3, "does not exist");
  expect_refused_on_one_and_two({"train", folder.path("text.txt")}, 3, "text.txt");
  expect_refused(run_program({"train"}), 2, "recipe");
  expect_refused(run_program({"train", folder.path("r.yaml"), "--sett", "a=b"}), 2, "--set");
  expect_refused(run_program({"train", folder.path("r.yaml"), "--set", "train.steps"}), 2,
                 "must be key=value");
}

TEST(BadInput, MissingData) {
  const TrainingFolder folder;
  folder.write("empty.txt", "");
  folder.write("short.txt", testing::sample_text(64));  // a sequence needs 64 and a target
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder.path("none.txt"), "none.txt cannot be opened"},
      {folder.path("empty.txt"), "empty.txt"},
      {folder.path("short.txt"), "has 64 tokens, less than the 65 of one sequence"},
      {folder.path(""), "has no Parquet, Arrow or tar file"},
      {"/dev/null", "is a device"},
  };
  for (const auto& [file, message] : cases) {
    for (const char* key : {"data.train", "data.valid"}) {
      expect_refused(
          run_program(launched(2, train_arguments(folder.small() + Settings{{key, file}}))), 4,
          message);
    }
    expect_refused(run_program(train_arguments(folder.small() + Settings{{"data.train", file}})), 4,
                   message);
  }
  folder.write("just.txt", testing::sample_text(65));
  train(2, folder.small() + Settings{{"data.train", folder.path("just.txt")}});
}

TEST(BadInput, InvalidWorlds) {
  const TrainingFolder folder;
  const auto arguments = train_arguments(folder.small());
  using Environment = std::map<std::string, std::string>;
  const std::vector<std::pair<Environment, std::string>> cases = {
      {{{"RANK", "0"}}, "RANK is set, but WORLD_SIZE is not"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set, but RANK is not"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "1"}}, "RANK=2 is out of range"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "1"}}, "RANK='one' is not a whole number"},
  };
  for (const auto& [environment, message] : cases) {
    expect_refused(run_program(arguments, environment), 3, message);
  }
  expect_refused(
      run_program(
          launched(3, train_arguments(folder.small() + Settings{{"sharding.sharding_strategy", "4"},
                                                                {"sharding.group_size", "2"}}))),
      3, "sharding.group_size 2 does not divide the 3 ranks of the world");
}

// A saved step of two ranks, which tests damage.
class SavedSteps {
 public:
  explicit SavedSteps(const std::string& type = "FULL_STATE_DICT")
      : settings(folder.small() + Settings{{"checkpoint.dir", folder.path("saves")},
                                           {"checkpoint.every", "3"},
                                           {"checkpoint.state_dict_type", type}}) {
    train(2, settings);
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return folder.path("saves/step-3/" + name);
  }

  TrainingFolder folder;
  Settings settings;
};

TEST(BadInput, DamagedCheckpoints) {
  const SavedSteps saved;
  const auto refused = [&](const std::string& file) {
    // The step is the only one in its folder; it is named as a step and as a model for `generate`.
    const auto arguments = train_arguments(saved.settings);
    expect_refused(run_program(launched(2, arguments)), 5, file);
    const auto by_name =
        train_arguments(saved.settings + Settings{{"checkpoint.resume", saved.file("")}});
    expect_refused(run_program(launched(2, by_name)), 5, file);
    expect_refused(run_program(by_name), 5, file);
  };
  for (const std::string name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string path = saved.file(name);
    const std::string good = testing::read_text(path);
    for (const auto place : {std::size_t{0}, std::size_t{100}, good.size() / 2, good.size() - 2}) {
      damage(path, static_cast<std::streamoff>(place));
      refused(name);
      damage(path, static_cast<std::streamoff>(place));  // repair it
    }
    fs::resize_file(path, good.size() / 2);
    refused(name);
    fs::resize_file(path, 0);
    refused(name);
    fs::remove(path);
    if (name != "manifest.json") refused(name);
    std::ofstream(path, std::ios::binary) << good;
  }
  EXPECT_EQ(run_program(launched(2, train_arguments(saved.settings))).code, 0);
}

TEST(BadInput, AMissingFileOfAShardedCheckpoint) {
  const SavedSteps saved("SHARDED_STATE_DICT");
  const std::string name = "model-rank-00001-of-00002.safetensors";
  fs::remove(saved.file(name));
  expect_refused_on_one_and_two(train_arguments(saved.settings), 5, name);
  expect_refused(run_program({"generate", saved.file(""), "--prompt", "a"}), 5, name);
}

// A limit on the size of files, which programs that start meanwhile inherit.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

// The save of step 6 failed: step 3 is complete, nothing else was written, and the run resumes from
// step 3.
void expect_intact(const TrainingFolder& folder, const Ended& failed, const Settings& settings) {
  EXPECT_EQ(failed.code, 5) << failed.err;
  EXPECT_EQ(error_lines(failed.err), 1) << failed.err;
  EXPECT_NE(failed.err.find("step-6"), std::string::npos) << failed.err;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path("saves"))) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{".lock", "latest", "step-3"}));
  const Ended resumed = train(2, settings + Settings{{"checkpoint.every", "0"}});
  EXPECT_NE(resumed.err.find("resumed from " + folder.path("saves/step-3")), std::string::npos)
      << resumed.err;
  EXPECT_EQ(resumed.err.find("passed over"), std::string::npos) << resumed.err;
}

TEST(BadInput, AFileOverTheLimitWhileSavingLeavesTheOldCheckpoint) {
  for (const char* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const SavedSteps saved(type);
    const Settings longer = saved.settings + Settings{{"train.steps", "6"}};
    std::optional<FileSizeLimit> limit(200'000);
    // One rank: with several the shared memory would also exceed the limit.
    const Ended failed = run_program(train_arguments(longer));
    limit.reset();
    EXPECT_NE(failed.err.find("EFBIG"), std::string::npos) << failed.err;
    expect_intact(saved.folder, failed, longer);
  }
}

TEST(BadInput, AFullDiskWhileSavingLeavesTheOldCheckpoint) {
  const TrainingFolder folder;
  const testing::SmallDisk disk(folder.path("saves"), "2600k");  // a checkpoint has 1.46 MB
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a file system";
  const Settings settings = folder.small() + Settings{{"checkpoint.dir", folder.path("saves")},
                                                      {"checkpoint.every", "3"},
                                                      {"train.steps", "6"}};
  const Ended failed = run_program(launched(2, train_arguments(settings)));
  expect_intact(folder, failed, settings);
}

TEST(BadInput, AFullDiskUnderTheMetrics) {
  const TrainingFolder folder;
  for (const int ranks : {1, 2}) {
    const Ended ended = run_program(
        launched(ranks, train_arguments(folder.small() + Settings{{"log.jsonl", "/dev/full"}})));
    EXPECT_EQ(ended.code, 5) << ended.err;
    EXPECT_EQ(error_lines(ended.err), 1) << ended.err;
    EXPECT_NE(ended.err.find("log.jsonl: /dev/full at step 1"), std::string::npos) << ended.err;
  }
}

TEST(BadInput, AFullDiskUnderOtherLogs) {
  const TrainingFolder folder;
  for (const char* key : {"log.csv", "log.trace", "log.summary"}) {
    for (const int ranks : {1, 2}) {
      const Ended ended = run_program(
          launched(ranks, train_arguments(folder.small() + Settings{{key, "/dev/full"}})));
      EXPECT_EQ(ended.code, 5) << ended.err;
      EXPECT_EQ(error_lines(ended.err), 1) << ended.err;
      EXPECT_NE(ended.err.find(std::string(key) + ": /dev/full"), std::string::npos) << ended.err;
    }
  }
  const testing::SmallDisk disk(folder.path("tb"), "4k");
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a file system";
  const Ended ended = run_program(train_arguments(
      folder.small() + Settings{{"log.tensorboard", folder.path("tb")}, {"train.steps", "60"}}));
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_EQ(error_lines(ended.err), 1) << ended.err;
  EXPECT_NE(ended.err.find("log.tensorboard: " + folder.path("tb")), std::string::npos)
      << ended.err;
}

// A log that is refused does not affect the others: existing files stay, and no new ones appear.
TEST(BadInput, ARefusedLogLeavesTheOthersAlone) {
  const TrainingFolder folder;
  folder.write("m.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  expect_refused(run_program(train_arguments(folder.small() +
                                             Settings{{"log.jsonl", folder.path("m.jsonl")},
                                                      {"log.csv", folder.path("m.csv")},
                                                      {"log.tensorboard", folder.path("tb")},
                                                      {"log.summary", folder.path("text.txt")},
                                                      {"log.trace", folder.path("t.json")}})),
                 3, "log.summary: " + folder.path("text.txt"));
  EXPECT_EQ(testing::read_text(folder.path("m.jsonl")), "{\"step\": 1, \"loss\": 2.5}\n");
  EXPECT_FALSE(fs::exists(folder.path("m.csv")));
  EXPECT_FALSE(fs::exists(folder.path("t.json")));
  EXPECT_FALSE(fs::exists(folder.path("tb/events.out.tfevents.tessera")));
}

TEST(BadInput, FoldersWithoutAPretrainedModel) {
  const TrainingFolder folder;
  const std::string model = folder.path("model");
  fs::create_directory(model);
  folder.write("r.yaml", "model: {pretrained: " + model +
                             ", seq_len: 64}\ndata: {train: " + folder.path("text.txt") + "}\n");
  const std::vector<std::string> arguments = {"train", folder.path("r.yaml")};
  expect_refused_on_one_and_two(arguments, 5, "model.pretrained: " + model + ": no config.json");
  folder.write("model/config.json", "{\"model_type\": \"gpt2\", \"n_layer\": }");
  expect_refused_on_one_and_two(arguments, 5, "config.json");
  for (const char* command : {"generate", "encode", "evaluate"}) {
    std::vector<std::string> words = {command, model};
    const std::vector<std::string> more =
        std::string(command) == "generate" ? std::vector<std::string>{"--prompt", "a"}
        : std::string(command) == "encode"
            ? std::vector<std::string>{"--input", folder.path("text.txt"), "--out",
                                       folder.path("e.npy")}
            : std::vector<std::string>{"--task", "perplexity", "--data", folder.path("text.txt")};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(run_program(words), 5, "config.json");
  }
  folder.write("model/config.json", "{\"model_type\": \"t5\"}");
  expect_refused_on_one_and_two(arguments, 3, "t5");
  folder.write("model/config.json",
               "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 64, "
               "\"n_positions\": 64, \"vocab_size\": 256}");
  expect_refused_on_one_and_two(arguments, 5, "safetensors");
  folder.write("model/model.safetensors", "not a model");
  expect_refused_on_one_and_two(arguments, 5, "model.safetensors");
  folder.write("model/config.json",
               "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 64, "
               "\"n_positions\": 32, \"vocab_size\": 256}");
  expect_refused_on_one_and_two(arguments, 3, "positions");
}

// The weights there are small: nothing of that size may be allocated to find it out.
TEST(BadInput, AConfigurationOfMoreThanItsWeights) {
  const TrainingFolder folder;
  train(1, folder.small() +
               Settings{{"checkpoint.dir", folder.path("out")}, {"checkpoint.every", "3"}});
  const std::string model = folder.path("model");
  fs::create_directory(model);
  fs::copy_file(folder.path("out/step-3/model.safetensors"), model + "/model.safetensors");
  nlohmann::json config = nlohmann::json::parse(read_text(folder.path("out/step-3/config.json")));
  folder.write("r.yaml", "model: {pretrained: " + model +
                             ", seq_len: 64}\ndata: {train: " + folder.path("text.txt") + "}\n");
  for (const char* key : {"n_layer", "n_embd", "vocab_size"}) {
    nlohmann::json changed = config;
    changed[key] = 1'000'000'000;
    folder.write("model/config.json", changed.dump());
    const std::string message = std::string(key) + " is 1000000000, but the ";
    expect_refused_on_one_and_two({"train", folder.path("r.yaml")}, 5, message);
    expect_refused(run_program({"generate", model, "--prompt", "a"}), 5, message);
    expect_refused(
        run_program({"evaluate", model, "--task", "perplexity", "--data", folder.path("text.txt")}),
        5, message);
  }
  for (const char* setting : {"model.n_layer=1000000000", "model.n_embd=1000000000"}) {
    expect_refused(run_program({"plan", testing::example_recipe(), "--set", setting}), 3,
                   "must be at least 1 and at most 1");
  }
}

}  // namespace
}  // namespace tessera::cli
