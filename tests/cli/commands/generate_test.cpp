// `tessera generate`: the same text from every kind of folder, repeatable sampling, logits.
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/cli/training_testing.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

// One model, saved in both types. It is trained once for all tests.
class Generate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TrainingFolder>();
    for (const std::string type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
      train(2, folder_->small() + Settings{{"train.steps", "30"},
                                           {"train.lr", "3e-3"},
                                           {"checkpoint.dir", path(type)},
                                           {"checkpoint.every", "15"},
                                           {"checkpoint.state_dict_type", type}});
    }
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static Ended generate(const std::string& folder, const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"generate", folder};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_program(arguments);
  }
  static std::string text(const std::string& folder, const std::vector<std::string>& options) {
    const Ended ended = generate(folder, options);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.err, "");
    return ended.out;
  }

  static std::unique_ptr<TrainingFolder> folder_;
};
std::unique_ptr<TrainingFolder> Generate::folder_;

const std::vector<std::string> draw_20 = {"--prompt",      "ga", "--max-new-tokens", "20",
                                          "--temperature", "1",  "--seed",           "7"};

TEST_F(Generate, EveryFolderGivesTheSameText) {
  const std::string expected = text(path("FULL_STATE_DICT/step-30"), draw_20);
  EXPECT_EQ(expected.substr(0, 2), "ga");
  EXPECT_EQ(expected.size(), 2u + 20 + 1);
  EXPECT_EQ(text(path("SHARDED_STATE_DICT/step-30"), draw_20), expected);
  EXPECT_EQ(text(path("FULL_STATE_DICT"), draw_20), expected);
  EXPECT_EQ(text(path("SHARDED_STATE_DICT"), draw_20), expected);
  EXPECT_NE(text(path("FULL_STATE_DICT/step-15"), draw_20), expected);
  // The files that transformers would read: the weights and their configuration.
  fs::create_directory(path("plain"));
  for (const std::string name : {"config.json", "model.safetensors"}) {
    fs::copy_file(path("FULL_STATE_DICT/step-30/" + name), path("plain/" + name));
  }
  EXPECT_EQ(text(path("plain"), draw_20), expected);
}

TEST_F(Generate, IdsInIdsOut) {
  const std::string letters =
      text(path("FULL_STATE_DICT"), {"--prompt", "sh", "--max-new-tokens", "6"});
  const std::string ids =
      text(path("FULL_STATE_DICT"), {"--prompt-ids", "115,104", "--max-new-tokens", "6"});
  std::string decoded;
  std::istringstream stream(ids);
  for (std::string id; std::getline(stream, id, ',');) decoded += static_cast<char>(std::stoi(id));
  EXPECT_EQ(decoded + "\n", letters);
  EXPECT_EQ(text(path("FULL_STATE_DICT"), {"--prompt-ids", "1,2,3", "--max-new-tokens", "0"}),
            "1,2,3\n");
}

TEST_F(Generate, DrawsCanBeRepeatedAndLimited) {
  const std::string steps = path("FULL_STATE_DICT");
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--prompt", "ga", "--max-new-tokens", "30"});
    return text(steps, options);
  };
  const std::string greedy = with({});
  EXPECT_EQ(with({"--seed", "1"}), greedy);
  EXPECT_EQ(with({"--temperature", "2", "--top-k", "1", "--seed", "5"}), greedy);
  const std::string first = with({"--temperature", "1", "--seed", "1"});
  EXPECT_EQ(with({"--temperature", "1", "--seed", "1"}), first);
  EXPECT_NE(with({"--temperature", "1", "--seed", "2"}), first);
  EXPECT_EQ(with({"--temperature", "0.0001", "--seed", "3"}), greedy);
}

TEST_F(Generate, ANucleusLimitsTheDraws) {
  const std::string steps = path("FULL_STATE_DICT");
  const std::vector<std::string> begin = {"--prompt", "ga", "--max-new-tokens", "30"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), begin.begin(), begin.end());
    return text(steps, options);
  };
  EXPECT_EQ(with({"--temperature", "2", "--top-p", "1e-9", "--seed", "5"}), with({}));
  EXPECT_EQ(with({"--temperature", "2", "--top-p", "1", "--seed", "5"}),
            with({"--temperature", "2", "--seed", "5"}));
}

TEST_F(Generate, EndsAtStopTokensAndAtTheModelsOwn) {
  fs::create_directory(path("ending"));
  for (const std::string name : {"config.json", "model.safetensors"}) {
    fs::copy_file(path("FULL_STATE_DICT/step-30/" + name), path("ending/" + name));
  }
  const std::vector<std::string> request = {"--prompt-ids", "103,97", "--max-new-tokens", "8"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), request.begin(), request.end());
    return text(path("ending"), options);
  };
  const std::string whole = with({});
  const std::string first = whole.substr(0, whole.find(',', 7));
  const std::string stop = first.substr(first.rfind(',') + 1);
  EXPECT_EQ(with({"--stop", stop}), first + "\n");
  write_file(path("ending/generation_config.json"), "{\"eos_token_id\": [3, " + stop + "]}");
  EXPECT_EQ(with({}), first + "\n");
  EXPECT_EQ(with({"--ignore-eos"}), whole);
  write_file(path("ending/generation_config.json"), "{\"eos_token_id\": \"end\"}");
  const Ended refused = generate(path("ending"), request);
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("eos_token_id is \"end\""), std::string::npos) << refused.err;
}

TEST_F(Generate, SeveralPromptsAreLinesOfJson) {
  const std::string steps = path("FULL_STATE_DICT");
  write_file(path("prompts.txt"), "ga\nthe licen\nx\n");
  const std::string lines =
      text(steps, {"--prompts", path("prompts.txt"), "--max-new-tokens", "6"});
  std::istringstream stream(lines);
  std::vector<std::string> prompts;
  for (std::string line; std::getline(stream, line);) {
    const auto result = nlohmann::json::parse(line);
    const std::string prompt = result.at("prompt");
    prompts.push_back(prompt);
    EXPECT_EQ(result.at("tokens").size(), 6u);
    EXPECT_EQ(text(steps, {"--prompt", prompt, "--max-new-tokens", "6"}),
              prompt + result.at("text").get<std::string>() + "\n");
  }
  EXPECT_EQ(prompts, (std::vector<std::string>{"ga", "the licen", "x"}));
}

TEST_F(Generate, AColumnsPromptsMayHaveLineBreaks) {
  const std::string steps = path("FULL_STATE_DICT");
  write_file(path("prompts.jsonl"), R"({"q": "ga\nthe"})"
                                    "\n");
  const auto result = nlohmann::json::parse(
      text(steps, {"--prompts", path("prompts.jsonl"), "--column", "q", "--max-new-tokens", "6"}));
  EXPECT_EQ(result.at("prompt"), "ga\nthe");
  EXPECT_EQ(text(steps, {"--prompt", "ga\nthe", "--max-new-tokens", "6"}),
            "ga\nthe" + result.at("text").get<std::string>() + "\n");
  Ended refused = generate(steps, {"--prompts", path("prompts.jsonl"), "--column", "p"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_NE(refused.err.find("line 1: no text 'p'"), std::string::npos) << refused.err;
  refused = generate(steps, {"--prompt", "a", "--column", "p"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--column"), std::string::npos) << refused.err;
}

// The model's template writes the conversation, and the answer alone is printed.
TEST_F(Generate, AChatIsTheTextOfTheModelsTemplate) {
  const std::string folder = path("chat");
  fs::create_directory(folder);
  for (const std::string name : {"config.json", "model.safetensors"}) {
    fs::copy_file(path("FULL_STATE_DICT/step-30/" + name), folder + "/" + name);
  }
  write_file(folder + "/chat_template.jinja",
             "{% for one in messages %}{{ one.role[0] }}:{{ one.content }}|{% endfor %}"
             "{% if add_generation_prompt %}a:{% endif %}");
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--max-new-tokens", "9"});
    return text(folder, options);
  };
  const std::string prompt = "u:ga|a:";
  const std::string whole = with({"--prompt", prompt});
  EXPECT_EQ(with({"--chat", "--prompt", "ga"}), whole.substr(prompt.size()));
  EXPECT_EQ("s:be brief|u:ga|a:" + with({"--chat", "--system", "be brief", "--prompt", "ga"}),
            with({"--prompt", "s:be brief|u:ga|a:"}));
  EXPECT_EQ("u:|a:" + with({"--chat", "--prompt", ""}), with({"--prompt", "u:|a:"}));
  write_file(path("messages.txt"), "ga\n");
  const auto line = nlohmann::json::parse(with({"--chat", "--prompts", path("messages.txt")}));
  EXPECT_EQ(line.at("prompt"), "ga");
  EXPECT_EQ(prompt + line.at("text").get<std::string>() + "\n", whole);

  write_file(folder + "/chat_template.jinja", "a\n{{ raise_exception('no') }}");
  const Ended refused = generate(folder, {"--chat", "--prompt", "ga"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.err.find("line 2: the template refuses the conversation: no"),
            std::string::npos)
      << refused.err;
}

TEST_F(Generate, In16BitsAndWithStatistics) {
  const Ended ended = generate(path("FULL_STATE_DICT"), {"--prompt", "ga", "--max-new-tokens", "5",
                                                         "--dtype", "bf16", "--stats"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out.size(), 2u + 5 + 1);
  EXPECT_NE(ended.err.find("2 tokens of prompt"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("5 new ones in"), std::string::npos) << ended.err;
}

// Generating neither reads nor needs the optimizer's tensors.
TEST_F(Generate, AStepWhoseOptimizerIsDamagedGenerates) {
  fs::copy(path("FULL_STATE_DICT"), path("worn"), fs::copy_options::recursive);
  testing::damage(path("worn/step-30/optimizer.safetensors"), 200'000);
  EXPECT_EQ(text(path("worn/step-30"), draw_20), text(path("FULL_STATE_DICT/step-30"), draw_20));
  EXPECT_EQ(text(path("worn"), draw_20), text(path("FULL_STATE_DICT/step-30"), draw_20));
}

TEST_F(Generate, TextMayBeLongerThanTheModelsPositions) {
  const std::string long_text =
      text(path("FULL_STATE_DICT"), {"--prompt", "tile", "--max-new-tokens", "100"});
  EXPECT_EQ(long_text.size(), 4u + 100 + 1);
}

TEST_F(Generate, LogitsAreASafetensorsFileOfThePromptsTokens) {
  const auto logits = [&](const std::string& folder) {
    const std::string file = path("logits.safetensors");
    text(folder, {"--prompt-ids", "1,2,3,4,5", "--max-new-tokens", "1", "--logits", file});
    return testing::read_text(file);
  };
  const std::string full = logits(path("FULL_STATE_DICT"));
  std::uint64_t length = 0;
  ASSERT_GT(full.size(), sizeof length);
  std::memcpy(&length, full.data(), sizeof length);
  const auto header = nlohmann::json::parse(full.substr(sizeof length, length));
  EXPECT_EQ(header.at("logits").at("dtype"), "F32");
  EXPECT_EQ(header.at("logits").at("shape"), nlohmann::json::parse("[5, 256]"));
  EXPECT_EQ(full.size(), sizeof length + length + 5 * 256 * sizeof(float));
  EXPECT_EQ(logits(path("SHARDED_STATE_DICT")), full);
}

TEST_F(Generate, InvalidRequestsAreRefused) {
  const std::string steps = path("FULL_STATE_DICT");
  fs::create_directory(path("empty"));
  struct RefusedRequest {
    std::string folder;
    std::vector<std::string> options;
    int code;
    std::string message;
  };
  const std::vector<RefusedRequest> cases = {
      {steps, {}, 2, "--prompt TEXT or as --prompt-ids 1,2,3"},
      {steps, {"--prompt", ""}, 2, "--prompt is empty"},
      {steps, {"--prompt", "a", "--prompt", "b"}, 2, "--prompt is given 2 times"},
      {steps, {"--prompt", "a", "--prompt-ids", "1"}, 2, "--prompt TEXT or as --prompt-ids 1,2,3"},
      {steps, {"--prompt-ids", "1,x"}, 2, "--prompt-ids"},
      {steps, {"--prompt-ids", "1,256"}, 4, "256 is outside the model's vocabulary of 256"},
      {steps, {"--prompt-ids=-1,5"}, 4, "-1 is outside"},
      {steps, {"--prompt", "a", "--temperature", "-1"}, 2, "must be a number of at least 0"},
      {steps, {"--prompt", "a", "--temperature", "nan"}, 2, "must be a number of at least 0"},
      {steps, {"--prompt", "a", "--top-k", "-3"}, 2, "--top-k"},
      {steps, {"--prompt", "a", "--max-new-tokens", "-3"}, 2, "--max-new-tokens"},
      {steps, {"--prompt", "a", "--top-p", "0"}, 2, "--top-p must be above 0"},
      {steps, {"--prompt", "a", "--top-p", "1.5"}, 2, "--top-p"},
      {steps, {"--prompt", "a", "--dtype", "fp8"}, 2, "--dtype fp8: must be one of fp32, bf16"},
      {steps, {"--prompt", "a", "--chat"}, 3, "no chat template"},
      {steps, {"--prompt-ids", "1,2", "--chat"}, 2, "give --prompt or --prompts"},
      {steps, {"--prompt", "a", "--system", "b"}, 2, "give --chat beside it"},
      {steps, {"--prompt", "a", "--stop", "x"}, 2, "--stop"},
      {steps, {"--prompt", "a", "--prompts", "-"}, 2, "--prompts FILE"},
      {steps, {"--prompts", path("none.txt")}, 4, "none.txt: cannot be read"},
      {steps, {"--prompts", "/dev/null"}, 4, "no prompts there"},
      {steps, {"--prompt", "a", "--seeed", "3"}, 2, "did you mean --seed?"},
      {steps, {"--prompt", std::string(65, 'a'), "--logits", path("l")}, 2, "takes 1 to 64"},
      {steps, {"--prompt", "a", "--logits", "/proc/nowhere/l"}, 3, "/proc/nowhere/l"},
      {path("none"), {"--prompt", "a"}, 5, "no such folder"},
      {path("empty"), {"--prompt", "a"}, 5, "no config.json"},
      {path("text.txt"), {"--prompt", "a"}, 5, "no such folder"},
      {"gpt2", {"--prompt", "a"}, 5, "hf download gpt2 --local-dir gpt2"},
  };
  for (const RefusedRequest& refused : cases) {
    const Ended ended = generate(refused.folder, refused.options);
    EXPECT_EQ(ended.code, refused.code) << ended.err;
    EXPECT_EQ(ended.out, "") << refused.message;
    EXPECT_EQ(ended.err.substr(0, 16), "tessera: error: ");
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(refused.message), std::string::npos) << ended.err;
  }
}

TEST_F(Generate, ADamagedNewestStepIsSkippedWithAWarning) {
  const std::string expected = text(path("FULL_STATE_DICT/step-15"), draw_20);
  fs::copy(path("FULL_STATE_DICT"), path("damaged"), fs::copy_options::recursive);
  testing::damage(path("damaged/step-30/model.safetensors"), 200'000);
  const Ended ended = generate(path("damaged"), draw_20);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, expected);
  EXPECT_NE(ended.err.find("passed over step-30"), std::string::npos) << ended.err;
  EXPECT_EQ(generate(path("damaged/step-30"), draw_20).code, 5);
}

}  // namespace
}  // namespace tessera::cli
