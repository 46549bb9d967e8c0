// A text file is encoded in pieces, on any number of threads, with the ids of the whole text.
#include <random>
#include <string>
#include <vector>

#include "engine/data/tokenize_text.h"
#include "tokenizers/fixtures_testing.h"

namespace tessera::tokenizers::testing {
namespace {

std::string mixed_text() {
  std::mt19937 random(5);
  const nlohmann::json lines = json_of(fixture("cases.json"))["lines"];
  std::string text;
  for (int i = 0; i < 1500; ++i) {
    text += lines[random() % lines.size()].get<std::string>();
    text += random() % 5 == 0 ? "\n\n" : random() % 3 == 0 ? " " : "\n";
  }
  return text;
}

std::vector<std::int32_t> in_pieces(const fs::path& path, const Tokenizer& tokenizer,
                                    const TokenizeOptions& options, std::size_t& pieces) {
  std::vector<std::int32_t> ids;
  pieces = 0;
  tokenize_text(path, tokenizer, options, [&](std::span<const std::int32_t> some) {
    ids.insert(ids.end(), some.begin(), some.end());
    ++pieces;
  });
  return ids;
}

TEST(WholeTexts, PiecesGiveTheIdsOfTheWhole) {
  const ScratchFolder folder;
  const std::string text = mixed_text();
  const fs::path path = folder.write("text.txt", text);
  for (const char* name : {"gpt2", "llama3", "qwen2", "bert", "cased", "unigram", "openai"}) {
    const auto tokenizer = load_tokenizer(fixture(std::string(name) + ".json"));
    const std::vector<std::int32_t> whole = tokenizer->encode(text);
    for (const std::int64_t chunk : {1000, 4096, 1 << 20}) {
      std::size_t pieces = 0;
      const auto ids = in_pieces(
          path, *tokenizer, {.workers = 1, .chunk_bytes = chunk, .longest_chunk = 1 << 20}, pieces);
      EXPECT_EQ(ids, whole) << name << " in pieces of " << chunk;
      EXPECT_GE(pieces, text.size() / static_cast<std::size_t>(chunk) / 4) << name;
      EXPECT_EQ(in_pieces(path, *tokenizer,
                          {.workers = 3, .chunk_bytes = chunk, .longest_chunk = 1 << 20}, pieces),
                whole)
          << name << " on threads";
    }
  }
}

// Patterns whose pieces depend on text that is far away: only the ids of all the text since the
// last cut show where another may be.
TEST(WholeTexts, PiecesOfPatternsThatLookFar) {
  const ScratchFolder folder;
  std::mt19937 random(7);
  std::string text;
  while (text.size() < 60'000) {
    const char* const parts[] = {"word ", "it is ", "\"", "(a ", ") ", "\n", "seven\n", "x"};
    text += parts[random() % 8];
  }
  const fs::path path = folder.write("text.txt", text);
  nlohmann::json file = json_of(fixture("gpt2.json"));
  for (const char* const pattern :
       {R"("[^"]*"|[^"\s]+|\s+)", R"([\s\S]{7})", R"((?: ?\S+){3})", R"((?m)\G.{1,9})"}) {
    file["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"Regex", pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}},
                               {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", false}}}}};
    const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", file.dump()));
    const std::vector<std::int32_t> whole = tokenizer->encode(text);
    for (const int workers : {1, 3}) {
      std::size_t pieces = 0;
      const auto ids =
          in_pieces(path, *tokenizer,
                    {.workers = workers, .chunk_bytes = 4096, .longest_chunk = 1 << 20}, pieces);
      EXPECT_EQ(ids, whole) << pattern << " on " << workers;
    }
  }
}

// A tokenizer that adds something before each text cannot be split; memory is still bounded, and
// the ids do not depend on the threads.
TEST(WholeTexts, WhereTextsCannotBeSplitPiecesEndWithLines) {
  const ScratchFolder folder;
  const fs::path path = folder.write("text.txt", mixed_text());
  const auto tokenizer = load_tokenizer(fixture("llama2.json"));
  std::size_t pieces = 0;
  const TokenizeOptions one{.workers = 1, .chunk_bytes = 1000, .longest_chunk = 8000};
  const auto ids = in_pieces(path, *tokenizer, one, pieces);
  EXPECT_GT(pieces, 4u);
  TokenizeOptions three = one;
  three.workers = 3;
  EXPECT_EQ(in_pieces(path, *tokenizer, three, pieces), ids);
}

TEST(WholeTexts, TextsWithoutBlanksAndWithoutEnd) {
  const ScratchFolder folder;
  const auto tokenizer = load_tokenizer(fixture("gpt2.json"));
  std::string text;
  while (text.size() < 20'000) text += "\u4e2d\u6587";
  const fs::path path = folder.write("text.txt", text);
  std::size_t pieces = 0;
  const auto ids = in_pieces(path, *tokenizer,
                             {.workers = 2, .chunk_bytes = 100, .longest_chunk = 1000}, pieces);
  EXPECT_EQ(tokenizer->decode(ids), text) << "a character was cut";
  EXPECT_GT(pieces, 10u);
  const fs::path empty = folder.write("empty.txt", "");
  EXPECT_TRUE(in_pieces(empty, *tokenizer, {}, pieces).empty());
}

}  // namespace
}  // namespace tessera::tokenizers::testing
