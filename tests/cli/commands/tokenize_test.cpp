// `tessera tokenize`: a token stream, or JSON lines; refused input; no partly written files.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/data/corpus.h"
#include "tests/cli/training_testing.h"
#include "tokenizers/load.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::run_program;
using testing::TemporaryFolder;

std::string tokenizer_file(const std::string& name) {
  return std::string(std::getenv("TESSERA_SOURCE_DIR")) + "/tests/tokenizers/fixtures/" + name;
}

fs::path text_in(const TemporaryFolder& folder, const std::string& contents) {
  std::ofstream(folder / "text.txt", std::ios::binary) << contents;
  return folder / "text.txt";
}

Ended tokenize(const fs::path& text, const std::vector<std::string>& options) {
  std::vector<std::string> arguments = {"tokenize", text.string()};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return run_program(arguments);
}

TEST(Tokenize, AStreamForTraining) {
  const TemporaryFolder folder;
  const std::string contents = "The king sees the queen;\n\nit's the 3rd time.\n";
  const fs::path text = text_in(folder, contents);
  const auto tokenizer = tokenizers::load_tokenizer(tokenizer_file("gpt2.json"));
  for (const std::string workers : {"1", "3"}) {
    const std::string out = (folder / "tokens.bin").string();
    const Ended ended = tokenize(
        text, {"--tokenizer", tokenizer_file("gpt2.json"), "--out", out, "--workers", workers});
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_NE(ended.out.find("tokens of fixtures/gpt2.json"), std::string::npos) << ended.out;
    const Corpus corpus(out, ByteTokenizer());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.tokens()));
    corpus.read(0, ids);
    EXPECT_EQ(ids, tokenizer->encode(contents));
    EXPECT_EQ(corpus.vocabulary_size(), tokenizer->vocabulary_size());
  }
}

// Without a tokenizer in the recipe, streams of any are taken, but not of two.
TEST(Tokenize, StreamsOfTwoTokenizersAreNotOneCorpus) {
  const testing::TrainingFolder folder;
  for (const auto& [tokenizer, out] : {std::pair{tokenizer_file("gpt2.json"), "a.tokens"},
                                       std::pair{tokenizer_file("bert.json"), "b.tokens"},
                                       std::pair{std::string("bytes"), "c.tokens"}}) {
    ASSERT_EQ(
        tokenize(folder.path("text.txt"), {"--tokenizer", tokenizer, "--out", folder.path(out)})
            .code,
        0);
  }
  folder.write("recipe.yaml",
               "model: {architecture: gpt2, n_layer: 1, n_embd: 16, n_head: 2, seq_len: 16}\n"
               "data: {train: a.tokens, batch_size: 2}\n"
               "train: {steps: 1}\n"
               "log: {jsonl: null}\n");
  const auto run = [&](const std::string& train, const std::string& valid,
                       const std::string& tokenizer = "") {
    testing::Settings settings{{"data.train", train}};
    if (!valid.empty()) settings["data.valid"] = valid;
    if (!tokenizer.empty()) settings["data.tokenizer"] = tokenizer;
    return run_program(testing::train_arguments(settings, folder.path("recipe.yaml")));
  };
  const std::string a = folder.path("a.tokens");
  const std::string b = folder.path("b.tokens");
  const std::string c = folder.path("c.tokens");
  const std::string text = folder.path("text.txt");
  EXPECT_EQ(run("[" + a + ", " + a + "]", a).code, 0);
  EXPECT_EQ(run("[" + c + ", " + text + "]", text, "bytes").code, 0);
  for (const Ended& ended : {run("[" + a + ", " + b + "]", ""), run("[" + a + ", " + c + "]", ""),
                             run("[" + a + ", " + text + "]", ""), run(a, text), run(a, b)}) {
    EXPECT_EQ(ended.code, 3) << ended.err;
    testing::expect_parts(ended.err, {"holds tokens of tokenizer", "a.tokens", "data.tokenizer"});
  }
  for (const Ended& ended : {run(a, "", "bytes"), run(a, "", tokenizer_file("bert.json"))}) {
    EXPECT_EQ(ended.code, 3) << ended.err;
    testing::expect_parts(ended.err, {"a.tokens", "holds tokens of tokenizer fixtures/gpt2.json"});
  }
}

TEST(Tokenize, ListsByLines) {
  const TemporaryFolder folder;
  const fs::path text = text_in(folder, "The king\n\nsees \xff the queen\r\nlast");
  const std::string listing = (folder / "ids.json").string();
  const auto tokenizer = tokenizers::load_tokenizer(tokenizer_file("bert.json"));
  for (const bool special : {false, true}) {
    std::vector<std::string> options = {
        "--tokenizer", tokenizer_file("bert.json"), "--lines", "--json", listing, "--workers", "2"};
    if (special) options.emplace_back("--special-tokens");
    const Ended ended = tokenize(text, options);
    ASSERT_EQ(ended.code, 0) << ended.err;
    nlohmann::json expected = nlohmann::json::array();
    for (const std::string line : {"The king", "", "sees \xff the queen\r", "last"}) {
      expected.push_back(special ? tokenizer->encode_sequence(line, 0) : tokenizer->encode(line));
    }
    EXPECT_EQ(nlohmann::json::parse(testing::read_text(listing)), expected);
  }
}

TEST(Tokenize, ListsOfAColumnsTexts) {
  const TemporaryFolder folder;
  const fs::path text = text_in(folder, R"({"t": "The king\nsees"})"
                                        "\n"
                                        R"({"t": "", "u": 1})"
                                        "\n");
  const std::string listing = (folder / "ids.json").string();
  const auto with = [&](const std::string& column) {
    return tokenize(text,
                    {"--tokenizer", "bytes", "--lines", "--json", listing, "--column", column});
  };
  Ended ended = with("t");
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::string expected = "The king\nsees";
  EXPECT_EQ(nlohmann::json::parse(testing::read_text(listing)),
            nlohmann::json(
                {std::vector<int>(expected.begin(), expected.end()), nlohmann::json::array()}));
  fs::remove(listing);
  ended = with("u");
  EXPECT_EQ(ended.code, 4);
  EXPECT_NE(ended.err.find(text.string() + ":1: no text 'u'"), std::string::npos) << ended.err;
  EXPECT_FALSE(fs::exists(listing));
}

TEST(Tokenize, BadInputIsOneLineAndLeavesNothing) {
  const TemporaryFolder folder;
  const fs::path text = text_in(folder, "some text");
  const std::string out = (folder / "tokens.bin").string();
  const std::string bert = tokenizer_file("bert.json");
  std::ofstream(folder / "empty.txt").close();
  std::ofstream(folder / "bad.json") << R"({"model": {"type": "Magic"}})";
  struct Case {
    fs::path text;
    std::vector<std::string> options;
    int code;
    std::string part;
  };
  const std::vector<Case> cases = {
      {folder / "gone.txt", {"--tokenizer", bert, "--out", out}, 4, "gone.txt"},
      {folder / "empty.txt", {"--tokenizer", bert, "--out", out}, 4, "no tokens"},
      {folder / "gone.txt", {"--tokenizer", bert, "--lines", "--json", out}, 4, "gone.txt"},
      {text, {"--tokenizer", "gone", "--out", out}, 3, "gone"},
      {text, {"--tokenizer", (folder / "bad.json").string(), "--out", out}, 4, "'Magic'"},
      {text, {"--tokenizer", bert, "--out", (folder / "no/t.bin").string()}, 3, "no/t.bin"},
      {text,
       {"--tokenizer", bert, "--lines", "--json", (folder / "no/t.json").string()},
       3,
       "no/t.json"},
      {text, {"--tokenizer", bert, "--out", text}, 2, "would replace "},
      {text, {"--tokenizer", bert, "--lines", "--json", text}, 2, "would replace "},
      {text, {"--out", out}, 2, "--tokenizer"},
      {text, {"--tokenizer", bert}, 2, "--out"},
      {text, {"--tokenizer", bert, "--lines", "--out", out}, 2, "--json"},
      {text, {"--tokenizer", bert, "--out", out, "--workers", "0"}, 2, "--workers"},
  };
  for (const Case& one : cases) {
    const Ended ended = tokenize(one.text, one.options);
    EXPECT_EQ(ended.code, one.code) << ended.err;
    EXPECT_NE(ended.err.find(one.part), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  EXPECT_EQ(testing::read_text(text), "some text");
  for (const auto& entry : fs::directory_iterator(folder / ".")) {
    EXPECT_EQ(entry.path().string().find("tokens.bin"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace tessera::cli
