// Parts of a tokenizer that llama.cpp does not have: a note for each that gives texts other ids
// there, and none for the others. tests/judges/test_gguf_tokenizers.py compares the ids.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/formats/gguf/gguf_tokenizer.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::GgufVocabulary;
using formats::vocabulary_of_json;
using nlohmann::json;

// BPE over bytes; no merge makes "abc".
json bytes_tokenizer() {
  return json::parse(R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "added_tokens": [{"id": 5, "content": "<s>", "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
              "merges": ["a b"]}})");
}

json pieces_tokenizer() {
  json tokenizer = json::parse(R"({
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
    "model": {"type": "BPE", "byte_fallback": true, "merges": ["a b"],
              "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}}})");
  for (int byte = 0; byte < 256; ++byte) {
    tokenizer["model"]["vocab"][fmt::format("<0x{:02X}>", byte)] = 4 + byte;
  }
  return tokenizer;
}

std::string notes_of(const json& tokenizer) {
  std::string notes;
  for (const std::string& note : vocabulary_of_json(tokenizer).notes) notes += note + "\n";
  return notes;
}

json split_by(const char* pattern, const char* behavior = "Isolated", bool invert = false) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", behavior},
             {"invert", invert}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

constexpr const char* llama3_words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen2_words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(GgufTokenizerNotes, NormalizersAreNamed) {
  EXPECT_EQ(notes_of(bytes_tokenizer()), "");
  EXPECT_EQ(notes_of(pieces_tokenizer()), "");
  json tokenizer = bytes_tokenizer();
  tokenizer["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(notes_of(tokenizer),
            "llama.cpp has no normalizer: a text that NFC of tokenizer.json changes has other ids "
            "there\n");
  tokenizer = pieces_tokenizer();
  tokenizer["normalizer"]["normalizers"].push_back({{"type", "NFKC"}});
  EXPECT_TRUE(has(notes_of(tokenizer), "that NFKC of tokenizer.json changes"));
}

TEST(GgufTokenizerNotes, IgnoreMergesWhereIdsCanDiffer) {
  json tokenizer = bytes_tokenizer();
  const auto with = [&](const json& cut, const json& ignores) {
    tokenizer["pre_tokenizer"] = cut;
    tokenizer["model"]["ignore_merges"] = ignores;
    return vocabulary_of_json(tokenizer);
  };
  EXPECT_TRUE(with(split_by(llama3_words), true).notes.empty());
  EXPECT_EQ(with(split_by(llama3_words), true).pre, "llama-bpe");
  EXPECT_EQ(with(split_by(llama3_words), false).pre, "smaug-bpe");  // merges every word
  EXPECT_TRUE(with(split_by(llama3_words), false).notes.empty());
  EXPECT_TRUE(with(split_by(qwen2_words), false).notes.empty());
  EXPECT_TRUE(has(with(split_by(qwen2_words), true).notes.at(0),
                  "ignore_merges of tokenizer.json is true: words such as 'abc'"));
  tokenizer["model"]["merges"].push_back("ab c");  // now all tokens are reached
  EXPECT_TRUE(with(split_by(qwen2_words), true).notes.empty());
  EXPECT_EQ(with(split_by(llama3_words), nullptr).pre, "llama-bpe");
}

TEST(GgufTokenizerNotes, RulesForWords) {
  json tokenizer = bytes_tokenizer();
  const auto pre = [&](const json& cut) {
    tokenizer["pre_tokenizer"] = cut;
    return vocabulary_of_json(tokenizer).pre;
  };
  const auto refused = [&](const json& cut) {
    tokenizer["pre_tokenizer"] = cut;
    return has(error_of([&] { (void)vocabulary_of_json(tokenizer); }), "splits words by a rule");
  };
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const auto sequence = [](const json& parts) {
    return json{{"type", "Sequence"}, {"pretokenizers", parts}};
  };
  EXPECT_EQ(pre(sequence({digits, bytes})), "smollm");
  EXPECT_EQ(pre(split_by(qwen2_words, "Removed", true)), "qwen2");
  EXPECT_TRUE(refused(split_by(qwen2_words, "Removed")));
  EXPECT_TRUE(refused(sequence({bytes, digits})));
  EXPECT_TRUE(refused(sequence({{{"type", "Digits"}, {"individual_digits", false}}, bytes})));
  EXPECT_TRUE(refused(sequence({{{"type", "Punctuation"}}, bytes})));
  EXPECT_TRUE(refused(sequence(
      {{{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Isolated"}}, bytes})));
  json spaced = bytes;
  spaced["add_prefix_space"] = true;
  tokenizer["pre_tokenizer"] = spaced;
  EXPECT_TRUE(has(notes_of(tokenizer), "puts no space before a text, as add_prefix_space does"));
}

TEST(GgufTokenizerNotes, WordsOfMetaspace) {
  json tokenizer = pieces_tokenizer();
  tokenizer.erase("normalizer");
  const auto with = [&](const char* scheme, bool split) {
    tokenizer["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
    return vocabulary_of_json(tokenizer);
  };
  EXPECT_TRUE(with("never", false).notes.empty());
  EXPECT_EQ(with("never", false).adds_space, false);
  EXPECT_EQ(with("first", false).adds_space, true);
  EXPECT_TRUE(has(with("first", false).notes.at(0), "begins with one or follows a special token"));
  EXPECT_TRUE(with("never", true).notes.empty());  // no token goes over the end of a word
  tokenizer["model"]["vocab"]["b▁a"] = 260;
  EXPECT_TRUE(has(with("never", true).notes.at(0), "tokens such as 'b▁a' are found there alone"));
  tokenizer = pieces_tokenizer();
  tokenizer["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_TRUE(has(notes_of(tokenizer), "does not cut texts before it merges them, as Digits"));
  tokenizer = pieces_tokenizer();
  tokenizer.erase("normalizer");
  EXPECT_TRUE(has(notes_of(tokenizer), "llama.cpp reads a space as ▁, which"));
}

TEST(GgufTokenizerNotes, PartsOfTheModel) {
  json tokenizer = bytes_tokenizer();
  tokenizer["model"]["end_of_word_suffix"] = "</w>";
  tokenizer["model"]["dropout"] = 0.1;
  tokenizer["model"]["unk_token"] = "<s>";
  const std::string notes = notes_of(tokenizer);
  EXPECT_TRUE(has(notes, "does not know end_of_word_suffix '</w>'"));
  EXPECT_TRUE(has(notes, "as dropout 0.1 of tokenizer.json does"));
  EXPECT_TRUE(has(notes, "passes over the 253 bytes that have no token"));
  tokenizer = pieces_tokenizer();
  tokenizer["model"]["vocab"].erase("<0x41>");
  EXPECT_TRUE(has(notes_of(tokenizer), "it has tokens for 255 of 256 bytes"));
  tokenizer = pieces_tokenizer();
  tokenizer["model"]["merges"] = json::array();
  EXPECT_TRUE(has(notes_of(tokenizer), "such as 'a' and 'b', which tokenizer.json does not merge"));
}

TEST(GgufTokenizerNotes, WhatComesAroundATextOrCutsIt) {
  json tokenizer = bytes_tokenizer();
  tokenizer["post_processor"] = json::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "ab"}}]})");
  const GgufVocabulary both = vocabulary_of_json(tokenizer);
  EXPECT_TRUE(both.notes.empty());
  EXPECT_EQ(both.adds_beginning, true);
  EXPECT_EQ(both.adds_end, true);
  EXPECT_EQ(both.beginning, "<s>");
  EXPECT_EQ(both.end, "ab");
  tokenizer["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "ab"}}}});
  EXPECT_TRUE(has(notes_of(tokenizer), "one after it, and tokenizer.json 1 and 2"));
  tokenizer["post_processor"] = {{"type", "ByteLevel"}};
  tokenizer["truncation"] = {{"max_length", 512}};
  EXPECT_EQ(notes_of(tokenizer),
            "llama.cpp cuts no texts, as truncation of tokenizer.json does at 512 tokens\n");
  EXPECT_EQ(vocabulary_of_json(tokenizer).adds_end, false);
}

// A folder with a model of 300 tokens.
class GgufTokenizerFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    json config = small_llama_config();
    config["vocab_size"] = 300;
    config["eos_token_id"] = 2;
    auto tensors = small_llama_tensors();
    for (NamedShape& tensor : tensors) {
      if (tensor.shape[0] == gguf_vocabulary) tensor.shape[0] = 300;
    }
    write_small_model(hf(), tensors, config);
    put("tokenizer.json", bytes_tokenizer());
  }
  void put(const char* name, const json& contents) const {
    write_all(hf() / name, contents.dump());
  }
  std::string convert_it() {
    std::string notes;
    for (const std::string& note : convert(hf(), gguf(), {.to = "gguf", .force = true}).notes) {
      notes += note + "\n";
    }
    return notes;
  }
  [[nodiscard]] json setting(const std::string& key) const {
    const auto header = formats::read_gguf_header(File::open_for_reading(gguf()));
    const auto found = header.metadata.find("tokenizer.ggml." + key);
    return found == header.metadata.end() ? json() : found->second;
  }
  [[nodiscard]] fs::path hf() const { return folder_.path() / "hf"; }
  [[nodiscard]] fs::path gguf() const { return folder_.path() / "m.gguf"; }
  TemporaryFolder folder_;
};

TEST_F(GgufTokenizerFiles, SeveralTokensThatEndAText) {
  json tokenizer = bytes_tokenizer();
  tokenizer["added_tokens"].push_back({{"id", 6}, {"content", "<|im_end|>"}, {"special", true}});
  put("tokenizer.json", tokenizer);
  put("generation_config.json", {{"eos_token_id", {4, 6, 3}}});
  EXPECT_FALSE(has(convert_it(), "tokens that end a text"));
  EXPECT_EQ(setting("eos_token_id"), 2);  // of config.json
  EXPECT_EQ(setting("eot_token_id"), 4);
  EXPECT_EQ(setting("eom_token_id"), 3);  // llama.cpp knows <|im_end|> by its text
  put("generation_config.json", {{"eos_token_id", {2, 0, 6, 1, 3, 4}}});
  EXPECT_TRUE(
      has(convert_it(),
          "llama.cpp has places for three of the tokens that end a text; it does not end at "
          "3, 4 of eos_token_id"));
  EXPECT_EQ(setting("eot_token_id"), 0);
  put("generation_config.json", {{"eos_token_id", 2}});
  convert_it();
  EXPECT_TRUE(setting("eot_token_id").is_null());
}

TEST_F(GgufTokenizerFiles, WithoutATokenThatEndsAText) {
  json config = json::parse(read_all(hf() / "config.json"));
  config.erase("eos_token_id");
  put("config.json", config);
  EXPECT_TRUE(
      has(convert_it(), "no file says which token ends a text, and llama.cpp takes number 11"));
}

TEST_F(GgufTokenizerFiles, TokensOfTheTemplateAreWritten) {
  json tokenizer = bytes_tokenizer();
  tokenizer["post_processor"] = json::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "ab"}}]})");
  put("tokenizer.json", tokenizer);
  EXPECT_TRUE(has(convert_it(), "llama.cpp puts token 2 after a text, and tokenizer.json 'ab'"));
  EXPECT_EQ(setting("bos_token_id"), 5);
  EXPECT_EQ(setting("add_bos_token"), true);
  EXPECT_EQ(setting("add_eos_token"), true);
  put("tokenizer_config.json", {{"add_eos_token", false}});
  EXPECT_FALSE(has(convert_it(), "after a text"));
  EXPECT_EQ(setting("add_eos_token"), false);
}

TEST_F(GgufTokenizerFiles, AddedTokensOfOtherFilesAndTheirSpaces) {
  put("tokenizer_config.json",
      {{"added_tokens_decoder",
        {{"7", {{"content", "<call>"}, {"special", true}}}, {"0", {{"content", "other"}}}}}});
  put("added_tokens.json", {{"<more>", 8}});
  EXPECT_FALSE(has(convert_it(), "no place for"));
  const std::string bytes = read_all(gguf());
  for (const char* token : {"<call>", "<more>", "[PAD6]", "[PAD9]"}) EXPECT_TRUE(has(bytes, token));
  EXPECT_FALSE(has(bytes, "[PAD8]"));
  json tokenizer = bytes_tokenizer();
  tokenizer["added_tokens"][0]["rstrip"] = true;
  put("tokenizer.json", tokenizer);
  EXPECT_TRUE(has(convert_it(), "rstrip or single_word for 1 of them, such as '<s>'"));
  tokenizer["added_tokens"][0]["content"] = "<|assistant|>";
  put("tokenizer.json", tokenizer);
  EXPECT_TRUE(has(convert_it(), "such as '<|assistant|>'"));
  json config = json::parse(read_all(hf() / "config.json"));
  config["_name_or_path"] = "org/Phi-3-mini";  // llama.cpp knows its tokens by this name
  put("config.json", config);
  EXPECT_FALSE(has(convert_it(), "rstrip"));
}

TEST_F(GgufTokenizerFiles, ChatTemplatesWithNames) {
  put("tokenizer_config.json", {{"chat_template",
                                 {{{"name", "default"}, {"template", "one"}},
                                  {{"name", "tool use"}, {"template", "two"}}}}});
  convert_it();
  const auto header = formats::read_gguf_header(File::open_for_reading(gguf()));
  EXPECT_EQ(header.metadata.at("tokenizer.chat_template"), "one");
  EXPECT_EQ(header.metadata.at("tokenizer.chat_template.tool_use"), "two");
  EXPECT_TRUE(has(read_all(gguf()), "tokenizer.chat_templates"));
}

TEST_F(GgufTokenizerFiles, HowTheModelIsSampled) {
  json generation = {{"do_sample", true}, {"temperature", 0.5}, {"top_k", 20}, {"top_p", nullptr}};
  put("generation_config.json", generation);
  convert_it();
  const auto sampling = [&] {
    return formats::read_gguf_header(File::open_for_reading(gguf())).metadata;
  };
  EXPECT_EQ(sampling().at("general.sampling.temp"), 0.5);
  EXPECT_EQ(sampling().at("general.sampling.top_k"), 20);
  EXPECT_FALSE(sampling().contains("general.sampling.top_p"));
  generation["do_sample"] = false;
  put("generation_config.json", generation);
  convert_it();
  EXPECT_FALSE(sampling().contains("general.sampling.temp"));
}

TEST_F(GgufTokenizerFiles, ATokenWithTwoNumbersIsRefused) {
  json tokenizer = bytes_tokenizer();
  tokenizer["added_tokens"].push_back({{"id", 9}, {"content", "ab"}, {"special", false}});
  put("tokenizer.json", tokenizer);
  EXPECT_TRUE(has(error_of([&] { convert_it(); }), "has 'ab' with the numbers 3 and 9"));
}

}  // namespace
}  // namespace tessera::checkpoint
