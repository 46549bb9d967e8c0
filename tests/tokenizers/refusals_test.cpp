// Invalid contents of a tokenizer file are refused in one line that names them and the way out.
#include <string>
#include <vector>

#include "tokenizers/fixtures_testing.h"
#include "tokenizers/pipeline/word_cache.h"

namespace tessera::tokenizers::testing {
namespace {

using nlohmann::json;

// The refusal of a fixture after a change.
std::string refusal_after(const std::string& name, const std::function<void(json&)>& change) {
  const ScratchFolder folder;
  json file = json_of(fixture(name));
  change(file);
  const fs::path path = folder.write("tokenizer.json", file.dump());
  return refusal_of([&] { (void)load_tokenizer(path); }, ErrorCode::data);
}

std::string refusal_of_text(const std::string& name, const std::string& contents) {
  const ScratchFolder folder;
  const fs::path path = folder.write(name, contents);
  return refusal_of([&] { (void)load_tokenizer(path); }, ErrorCode::data);
}

TEST(TokenizerRefusals, UnknownTypesAreNamed) {
  for (const char* element :
       {"normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}) {
    const std::string message =
        refusal_after("bert.json", [&](json& file) { file[element]["type"] = "Unheard\x1b[1m"; });
    EXPECT_TRUE(says(message, element)) << element;
    EXPECT_TRUE(says(message, "Unheard\\u001b[1m"))
        << element;  // no control character reaches the terminal
    EXPECT_TRUE(says(message, "not supported; there are")) << element;
  }
  EXPECT_TRUE(says(refusal_after("words.json",
                                 [](json& file) {
                                   file["pre_tokenizer"]["pretokenizers"][1]["type"] =
                                       "UnicodeWords";
                                 }),
                   "pre_tokenizer[1]"));
}

TEST(TokenizerRefusals, RandomTokenization) {
  EXPECT_TRUE(says(refusal_after("gpt2.json", [](json& file) { file["model"]["dropout"] = 0.1; }),
                   "dropout"));
}

TEST(TokenizerRefusals, InvalidVocabularies) {
  const auto model = [](const std::function<void(json&)>& change) {
    return refusal_after("gpt2.json", [&](json& file) { change(file["model"]); });
  };
  EXPECT_TRUE(says(model([](json& m) { m["vocab"]["a"] = -1; }), "token 'a'"));
  EXPECT_TRUE(says(model([](json& m) { m["vocab"]["a"] = 1e18; }), "token 'a'"));
  EXPECT_TRUE(says(model([](json& m) { m["vocab"]["a"] = 4000000000u; }), "token 'a'"));
  EXPECT_TRUE(says(model([](json& m) { m["vocab"] = json::array(); }), "'vocab'"));
  EXPECT_TRUE(says(model([](json& m) { m.erase("vocab"); }), "'vocab'"));
  EXPECT_TRUE(says(model([](json& m) { m["merges"] = 1; }), "'merges'"));
  EXPECT_TRUE(says(model([](json& m) { m["end_of_word_suffix"] = std::string(2000, 'a'); }),
                   "more than 1024 bytes"));
  EXPECT_TRUE(says(model([](json& m) { m["merges"][0] = "nospace"; }), "merge 0"));
  EXPECT_TRUE(says(model([](json& m) { m["merges"][1] = {"qq", "zz"}; }), "'qq'"));
  EXPECT_TRUE(says(model([](json& m) { m["merges"][1] = {"a"}; }), "merge 1"));
  EXPECT_TRUE(
      says(refusal_after("unigram.json", [](json& file) { file["model"]["unk_id"] = 100000; }),
           "unk_id"));
  EXPECT_TRUE(says(refusal_after("unigram.json",
                                 [](json& file) {
                                   file["model"]["vocab"][3] = {"x", "y"};
                                 }),
                   "entry 3"));
  EXPECT_TRUE(
      says(refusal_after("bert.json", [](json& file) { file["model"]["unk_token"] = "[NONE]"; }),
           "[NONE]"));
}

// At each byte of a text, as many steps as the longest token has bytes: a token of 3,000 bytes in a
// text that nearly has it took 14 s a megabyte.
TEST(TokenizerRefusals, TokensThatMakeTheSearchSlow) {
  const auto tokens_of = [](const char* name, std::size_t bytes) {
    return [=](json& file) {
      const std::string token(bytes, 'a');
      json& vocabulary = file["model"]["vocab"];
      if (std::string_view(name) == "unigram.json") {
        vocabulary.push_back({token, -5.0});
      } else if (std::string_view(name) == "bert.json") {
        vocabulary[token] = vocabulary.size();
      } else {
        file["added_tokens"].push_back({{"id", 5000}, {"content", token}, {"special", true}});
      }
    };
  };
  for (const char* name : {"unigram.json", "bert.json", "gpt2.json"}) {
    EXPECT_TRUE(says(refusal_after(name, tokens_of(name, 513)), "has 513 bytes")) << name;
    const ScratchFolder folder;
    json file = json_of(fixture(name));
    tokens_of(name, 512)(file);
    const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", file.dump()));
    EXPECT_FALSE(tokenizer->encode(std::string(1024, 'a')).empty()) << name;
  }
  // One more record behind those of a SentencePiece model: field 1 with the fields 1 and 2.
  const std::string piece =
      "\x0a\x81\x04" + std::string(513, 'a') + std::string("\x15\0\0\xa0\xc0", 5);
  EXPECT_EQ(piece.size(), 521u);
  EXPECT_TRUE(says(refusal_of_text("tokenizer.model",
                                   contents_of(fixture("pieces.model")) + "\x0a\x89\x04" + piece),
                   "has 513 bytes"));
}

TEST(TokenizerRefusals, InvalidPatternsAndTemplates) {
  EXPECT_TRUE(says(refusal_after("llama3.json",
                                 [](json& file) {
                                   file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
                                       "(unclosed";
                                 }),
                   "the pattern '(unclosed' is not understood"));
  EXPECT_TRUE(says(
      refusal_after("cased.json",
                    [](json& file) { file["post_processor"]["special_tokens"].erase("[SEP]"); }),
      "[SEP]"));
  EXPECT_TRUE(says(refusal_after("precompiled.json",
                                 [](json& file) {
                                   file["normalizer"]["normalizers"][0]["precompiled_charsmap"] =
                                       "////";
                                 }),
                   "precompiled_charsmap"));
}

TEST(TokenizerRefusals, DamagedFiles) {
  EXPECT_TRUE(says(refusal_of_text("tokenizer.json", "{\"model\": "), "not valid JSON"));
  EXPECT_TRUE(says(refusal_of_text("tokenizer.json", "[]"), "not a JSON object"));
  EXPECT_TRUE(says(refusal_of_text("tokenizer.json", "{}"), "'model'"));
  EXPECT_TRUE(says(refusal_of_text("tokenizer.json", R"({"model": {}, "model": {}})"), "twice"));
  EXPECT_TRUE(says(refusal_of_text("vocab.txt", ""), "empty"));
  EXPECT_TRUE(says(refusal_of_text("vocab.txt", "a\nb\n"), "[UNK]"));
  EXPECT_TRUE(says(refusal_of_text("some.model", "no protobuf at all"), "SentencePiece"));
  EXPECT_TRUE(
      says(refusal_of_text("tokenizer.model", "IQ== 0\nIg== 1\n"), "is a file of tiktoken's"));
  std::string cut = contents_of(fixture("pieces.model"));
  EXPECT_TRUE(says(refusal_of_text("cut.model", cut.substr(0, cut.size() / 2)), "SentencePiece"));
}

TEST(TokenizerRefusals, InvalidNames) {
  const auto message = [](const std::string& name) {
    return refusal_of([&] { (void)load_tokenizer(name); }, ErrorCode::configuration);
  };
  EXPECT_TRUE(says(message("gpt2"), "name a folder"));
  const ScratchFolder folder;
  EXPECT_TRUE(says(message(folder.path()), "tokenizer.json"));
  EXPECT_TRUE(says(message(folder.write("tokens.xyz", "x")), "tokens.xyz"));
  EXPECT_EQ(load_tokenizer("bytes")->vocabulary_size(), 256);
}

std::string refusal_of_encoding(const std::string& name, const std::function<void(json&)>& change,
                                const std::string& text) {
  const ScratchFolder folder;
  json file = json_of(fixture(name));
  change(file);
  const fs::path path = folder.write("tokenizer.json", file.dump());
  return refusal_of([&] { (void)load_tokenizer(path)->encode(text); }, ErrorCode::data);
}

TEST(TokenizerRefusals, ModelsWhoseIdsAClassChanges) {
  const ScratchFolder folder;
  (void)folder.write("sentencepiece.bpe.model", contents_of(fixture("pieces.model")));
  (void)folder.write("tokenizer_config.json", R"({"tokenizer_class": "XLMRobertaTokenizer"})");
  EXPECT_TRUE(says(refusal_of([&] { (void)load_tokenizer(folder.path()); }, ErrorCode::data),
                   "save_pretrained"));
}

json replace_a(const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", content}};
}

TEST(TokenizerRefusals, ReplacementsThatGrowWithoutBound) {
  json doubled = json::array();
  for (int i = 0; i < 40; ++i) doubled.push_back(replace_a("aa"));
  const json nested = {{"type", "Sequence"},
                       {"normalizers", {{{"type", "Sequence"}, {"normalizers", doubled}}}}};
  for (const json& normalizer : {replace_a(std::string(1 << 20, 'b')), nested}) {
    EXPECT_TRUE(says(refusal_of_encoding(
                         "bert.json", [&](json& file) { file["normalizer"] = normalizer; },
                         std::string(400, 'a')),
                     "more than 256 times as long"));
  }
  const ScratchFolder folder;
  json file = json_of(fixture("bert.json"));
  file["decoder"] = {{"type", "Sequence"}, {"decoders", doubled}};
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", file.dump()));
  EXPECT_TRUE(says(
      refusal_of([&] { (void)tokenizer->decode(tokenizer->encode("a banana")); }, ErrorCode::data),
      "more than 256 times as long"));
}

TEST(TokenizerRefusals, CharsmapsThatAreNotText) {
  // A map of one unit, whose texts are not UTF-8: 4 bytes for the size, the unit, the texts.
  EXPECT_TRUE(says(refusal_after("precompiled.json",
                                 [](json& file) {
                                   file["normalizer"]["normalizers"][0]["precompiled_charsmap"] =
                                       "BAAAAAAAAAD/gP8A";
                                 }),
                   "precompiled_charsmap is damaged"));
}

// A cache entry counts its ids in 16 bits, and the arena has a limited size.
TEST(WordCache, KeepsNoMoreIdsThanAnEntryCanCount) {
  for (const std::size_t count : {std::size_t{0x10000}, std::size_t{1} << 21}) {
    WordCache cache;
    const std::uint64_t hash = WordCache::hash_of("word");
    cache.insert("word", hash, std::vector<std::int32_t>(count, 7));
    EXPECT_FALSE(cache.find("word", hash).found);
    cache.insert("word", hash, std::vector<std::int32_t>{1, 2, 3});
    EXPECT_TRUE(cache.find("word", hash).found);
  }
}

TEST(TokenizerRefusals, IdsOutsideTheVocabulary) {
  for (const char* name : {"bert.json", "gpt2.json", "unigram.json", "pieces.model"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    const auto size = static_cast<std::int32_t>(tokenizer->vocabulary_size());
    for (const std::int32_t bad : {-1, size}) {
      const std::vector<std::int32_t> ids = {0, bad};
      EXPECT_TRUE(
          says(refusal_of([&] { (void)tokenizer->decode(ids); }, ErrorCode::data), "position 1"))
          << name;
    }
  }
}

// Unigram without an unknown token, WordLevel without it in the vocabulary.
TEST(TokenizerRefusals, TextsThatNoTokenCovers) {
  const ScratchFolder folder;
  json file = json_of(fixture("unigram.json"));
  file["model"]["unk_id"] = nullptr;
  const auto unigram = load_tokenizer(folder.write("a.json", file.dump()));
  EXPECT_TRUE(says(refusal_of([&] { (void)unigram->encode("\xF0\x9F\x98\x80"); }, ErrorCode::data),
                   "unk_id"));
  EXPECT_FALSE(unigram->encode("the").empty());  // it still works
}

}  // namespace
}  // namespace tessera::tokenizers::testing
