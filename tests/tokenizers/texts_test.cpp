// Texts that are no UTF-8, very long words, sequences that are cut, and what stands beside a
// tokenizer.
#include <string>
#include <vector>

#include "support/processor_time.h"
#include "tokenizers/fixtures_testing.h"

namespace tessera::tokenizers::testing {
namespace {

using nlohmann::json;

// One replacement character for each longest valid prefix of a character, as in Python's
// bytes.decode(errors="replace").
TEST(TokenizerTexts, InvalidUtf8IsReadAsReplacementCharacters) {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"a\xff"
       "b",
       "a\uFFFDb"},
      {"\x80\x80", "\uFFFD\uFFFD"},
      {"\xc3", "\uFFFD"},
      {"\xe4\xb8x", "\uFFFDx"},
      {"\xe4\xb8\xe4\xb8\xad", "\uFFFD\u4e2d"},
      {"\xf0\x9f\x98 \xf0\x9f", "\uFFFD \uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},  // a surrogate
      {"\xc0\xaf\xf5\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
  };
  for (const char* name :
       {"gpt2.json", "llama3.json", "bert.json", "unigram.json", "pieces.model"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    for (const auto& [bad, good] : texts) {
      EXPECT_EQ(tokenizer->encode(bad), tokenizer->encode(good)) << name << json(good);
    }
  }
}

// As in the package: an empty text is between all characters, as an empty expression is.
TEST(TokenizerTexts, AnEmptyTextAsAPatternIsBetweenAllCharacters) {
  const ScratchFolder folder;
  for (const char* const kind : {"String", "Regex"}) {
    json file = {{"version", "1.0"},
                 {"added_tokens", json::array()},
                 {"pre_tokenizer",
                  {{"type", "Split"},
                   {"pattern", {{kind, ""}}},
                   {"behavior", "Isolated"},
                   {"invert", false}}},
                 {"model",
                  {{"type", "WordLevel"},
                   {"vocab", {{"a", 0}, {" ", 1}, {"b", 2}, {"\u00e9", 3}, {"-", 4}}},
                   {"unk_token", "-"}}}};
    const auto ids = [&] {
      return load_tokenizer(folder.write("tokenizer.json", file.dump()))->encode("a b\u00e9");
    };
    EXPECT_EQ(ids(), (std::vector<std::int32_t>{0, 1, 2, 3})) << kind;
    file["normalizer"] = {{"type", "Replace"}, {"pattern", {{kind, ""}}}, {"content", "-"}};
    EXPECT_EQ(ids(), (std::vector<std::int32_t>{4, 0, 4, 1, 4, 2, 4, 3, 4})) << kind;
  }
}

// Twice as many letters must take about twice the time, not four times.
TEST(TokenizerTexts, LongWordsAreNotQuadratic) {
  for (const char* name : {"gpt2.json", "llama2.json", "bert.json", "unigram.json", "qwen2.json"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    std::string word;
    while (word.size() < 2'000'000) word += "thequeenanswersthesoldier";
    const double before = tessera::testing::own_processor_seconds();
    EXPECT_FALSE(tokenizer->encode(word).empty());
    EXPECT_LT(tessera::testing::own_processor_seconds() - before, 30) << name;  // quadratic: hours
  }
}

TEST(TokenizerTexts, SequencesAreTruncatedToTheMaximum) {
  const auto tokenizer = load_tokenizer(fixture("bert.json"));
  const std::string text = "The king sees the queen, and the dog follows the cat.";
  const auto whole = tokenizer->encode_sequence(text, 0);
  for (std::int64_t longest = 2; longest <= static_cast<std::int64_t>(whole.size()) + 1;
       ++longest) {
    const auto cut = tokenizer->encode_sequence(text, longest);
    EXPECT_EQ(static_cast<std::int64_t>(cut.size()),
              std::min(longest, static_cast<std::int64_t>(whole.size())));
    EXPECT_EQ(cut.front(), whole.front());
    EXPECT_EQ(cut.back(), whole.back());
    EXPECT_TRUE(std::equal(cut.begin(), cut.end() - 1, whole.begin()));
  }
  EXPECT_TRUE(
      says(refusal_of([&] { (void)tokenizer->encode_sequence(text, 1); }, ErrorCode::configuration),
           "2 special tokens"));
}

TEST(TokenizerTexts, SequencesMayBeTruncatedFromTheLeft) {
  const ScratchFolder folder;
  json file = json_of(fixture("bert.json"));
  file["truncation"] = {
      {"direction", "Left"}, {"max_length", 8}, {"strategy", "LongestFirst"}, {"stride", 0}};
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", file.dump()));
  const std::string text = "The king sees the queen and the dog";
  const auto whole = tokenizer->encode_sequence(text, 0);
  const auto cut = tokenizer->encode_sequence(text, 5);
  ASSERT_EQ(cut.size(), 5u);
  EXPECT_TRUE(std::equal(cut.begin() + 1, cut.end(), whole.end() - 4));
}

TEST(TokenizerTexts, PaddingAndTheEndOfText) {
  const ScratchFolder folder;
  (void)folder.write("tokenizer.json", contents_of(fixture("gpt2.json")));
  const auto plain = load_tokenizer(folder.path());
  const std::int32_t end = 0;
  EXPECT_EQ(plain->end_of_text(), end);
  EXPECT_EQ(plain->padding_id(), end);
  EXPECT_EQ(plain->encode("<|endoftext|>"), std::vector<std::int32_t>{end});
  (void)folder.write("tokenizer_config.json",
                     R"({"eos_token": {"content": "!"}, "pad_token": "a"})");
  const auto named = load_tokenizer(folder.path());
  EXPECT_EQ(named->end_of_text(), plain->encode("!").front());
  EXPECT_EQ(named->padding_id(), plain->encode("a").front());
  EXPECT_EQ(load_tokenizer(fixture("bert.json"))->padding_id(), 0);
}

TEST(TokenizerTexts, TheFingerprintDependsOnWhatDecidesTheIds) {
  const ScratchFolder folder;
  json file = json_of(fixture("gpt2.json"));
  const auto fingerprint = [&] {
    return load_tokenizer(folder.write("tokenizer.json", file.dump()))->fingerprint();
  };
  const std::uint64_t one = fingerprint();
  EXPECT_EQ(load_tokenizer(fixture("gpt2.json"))->fingerprint(), one);
  file["decoder"] = nullptr;
  file["truncation"] = {{"max_length", 3}};
  EXPECT_EQ(fingerprint(), one);
  file["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_NE(fingerprint(), one);
  EXPECT_NE(load_tokenizer("bytes")->fingerprint(), one);
}

}  // namespace
}  // namespace tessera::tokenizers::testing
