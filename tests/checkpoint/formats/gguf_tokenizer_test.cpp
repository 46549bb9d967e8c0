// The tokenizer in a GGUF file: tokens, kinds, merges and scores from tokenizer.json and
// tokenizer.model, special tokens, the chat template.
#include <gtest/gtest.h>

#include "checkpoint/formats/gguf/gguf_tokenizer.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::GgufVocabulary;
using formats::vocabulary_of_json;

nlohmann::json byte_bpe() {
  return nlohmann::json::parse(R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {}}]},
    "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                     {"id": 4, "content": "tool", "special": false}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})");
}

TEST(GgufTokenizer, BpeOverBytes) {
  const GgufVocabulary found = vocabulary_of_json(byte_bpe());
  EXPECT_EQ(found.model, "gpt2");
  EXPECT_EQ(found.pre, "gpt-2");
  EXPECT_EQ(found.tokens, (std::vector<std::string>{"a", "b", "ab", "<s>", "tool"}));
  EXPECT_EQ(found.kinds, (std::vector<std::int32_t>{1, 1, 1, 3, 4}));
  EXPECT_EQ(found.merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(found.adds_beginning, true);
}

TEST(GgufTokenizer, RulesForWordsHaveNames) {
  auto tokenizer = byte_bpe();
  const auto split = [&](const char* pattern) {
    tokenizer["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
          {{"type", "ByteLevel"}, {"use_regex", false}}}}};
  };
  split(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  EXPECT_EQ(vocabulary_of_json(tokenizer).pre, "llama-bpe");
  split(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  EXPECT_EQ(vocabulary_of_json(tokenizer).pre, "qwen2");
  split(R"(\w+)");
  EXPECT_TRUE(
      has(error_of([&] { (void)vocabulary_of_json(tokenizer); }), "splits words by a rule"));
}

TEST(GgufTokenizer, SentencePieceAsBpeHasScoresByTheOrderOfMerges) {
  const auto found = vocabulary_of_json(nlohmann::json::parse(R"({
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
                     {"id": 1, "content": "<s>", "special": true}],
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
              "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "a": 3, "b": 4, "ab": 5, "abb": 6},
              "merges": ["a b", "ab b"]}})"));
  EXPECT_EQ(found.model, "llama");
  EXPECT_EQ(found.kinds, (std::vector<std::int32_t>{2, 3, 6, 1, 1, 1, 1}));
  EXPECT_GT(found.scores[5], found.scores[6]);  // the earlier merge
  EXPECT_GT(found.scores[6], found.scores[3]);  // a character is not merged
}

// One field of protobuf with a length.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

std::string piece(const std::string& token, float score, int kind) {
  std::string bytes = field(1, token) + std::string{static_cast<char>(2 << 3 | 5)};
  char raw[4];
  std::memcpy(raw, &score, sizeof raw);
  return field(1, bytes + std::string(raw, 4) + std::string{3 << 3, static_cast<char>(kind)});
}

TEST(GgufTokenizer, ModelsOfSentencePiece) {
  const std::string bpe = field(2, std::string{3 << 3, 2});
  const std::string unigram = field(2, std::string{3 << 3, 1});
  const std::string pieces = piece("<unk>", 0, 2) + piece("ab", -1.5f, 1);
  const GgufVocabulary found = formats::vocabulary_of_sentencepiece(pieces + bpe);
  EXPECT_EQ(found.tokens, (std::vector<std::string>{"<unk>", "ab"}));
  EXPECT_EQ(found.scores, (std::vector<float>{0.0f, -1.5f}));
  EXPECT_EQ(found.kinds, (std::vector<std::int32_t>{2, 1}));
  EXPECT_TRUE(has(error_of([&] { (void)formats::vocabulary_of_sentencepiece(pieces + unigram); }),
                  "not BPE"));
  for (std::size_t bytes = 0; bytes < pieces.size(); ++bytes) {
    EXPECT_FALSE(error_of([&] {
                   (void)formats::vocabulary_of_sentencepiece(pieces.substr(0, bytes));
                 }).empty());
  }
}

TEST(GgufTokenizer, FilesBesideTheWeightsAreInTheGgufFile) {
  const TemporaryFolder folder;
  const fs::path hf = folder.path() / "hf";
  write_small_model(hf, small_llama_tensors(), small_llama_config());
  write_all(hf / "tokenizer.json", byte_bpe().dump());
  write_all(hf / "tokenizer_config.json",
            R"({"bos_token": {"content": "<s>"}, "eos_token": "b", "add_bos_token": false,
                "chat_template": "{{ messages }}"})");
  const auto report = convert(hf, folder.path() / "m.gguf", {.to = "gguf"});
  EXPECT_TRUE(has(report.notes.back(), "35 tokens of padding follow the tokenizer's 5"));
  const auto header = formats::read_gguf_header(File::open_for_reading(folder.path() / "m.gguf"));
  EXPECT_EQ(header.metadata.at("tokenizer.ggml.bos_token_id"), 3);
  EXPECT_EQ(header.metadata.at("tokenizer.ggml.eos_token_id"), 1);
  EXPECT_EQ(header.metadata.at("tokenizer.ggml.add_bos_token"), false);
  EXPECT_EQ(header.metadata.at("tokenizer.chat_template"), "{{ messages }}");
  const std::string bytes = read_all(folder.path() / "m.gguf");
  EXPECT_TRUE(has(bytes, "[PAD39]"));
  EXPECT_FALSE(has(bytes, "[PAD40]"));
}

TEST(GgufTokenizer, ATokenizerOfAnotherModelIsRefused) {
  const TemporaryFolder folder;
  const fs::path hf = folder.path() / "hf";
  write_small_model(hf, small_llama_tensors(), small_llama_config());
  auto tokenizer = byte_bpe();
  tokenizer["model"]["vocab"]["ba"] = 40;
  write_all(hf / "tokenizer.json", tokenizer.dump());
  EXPECT_TRUE(has(error_of([&] { convert(hf, folder.path() / "m.gguf", {.to = "gguf"}); }),
                  "has 41 tokens, the model 40"));
}

}  // namespace
}  // namespace tessera::checkpoint
