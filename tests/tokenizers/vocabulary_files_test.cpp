// Vocabularies without a tokenizer.json: tiktoken's, tekken.json, and vocab.json with merges.txt
// give the ids of the tokenizer.json from which they are made here, and damaged ones are refused.
#include <sodium.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tokenizers/fixtures_testing.h"
#include "tokenizers/text/byte_alphabet.h"

namespace tessera::tokenizers::testing {
namespace {

using nlohmann::json;

std::string base64_of(const std::string& bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the NUL
  return text;
}

struct Ranked {
  std::vector<std::pair<std::string, std::int64_t>> tokens;  // bytes and id, without special tokens
  json special = json::object();                             // as in added_tokens_decoder
  std::string pattern;
};

Ranked ranked_fixture(const std::string& name) {
  const json file = json_of(fixture(name));
  Ranked out;
  out.pattern = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  for (const json& token : file["added_tokens"]) {
    out.special[std::to_string(token["id"].get<int>())] = token;
  }
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    if (out.special.contains(std::to_string(id.get<int>()))) continue;
    out.tokens.emplace_back(byte_alphabet().read(token).value(), id);
  }
  return out;
}

std::string lines_of(const Ranked& ranked) {
  std::string lines;
  for (const auto& [bytes, id] : ranked.tokens) {
    lines += fmt::format("{} {}\n", base64_of(bytes), id);
  }
  return lines;
}

json tekken_of(const Ranked& ranked, int special) {
  json file{{"config",
             {{"pattern", ranked.pattern},
              {"default_vocab_size", special + 100'000},
              {"default_num_special_tokens", special}}},
            {"vocab", json::array()},
            {"special_tokens", {{{"rank", 1}, {"token_str", "<s>"}}}}};
  for (const auto& [bytes, id] : ranked.tokens) {
    file["vocab"].push_back({{"rank", id}, {"token_bytes", base64_of(bytes)}});
  }
  return file;
}

// The lines of cases.json without the texts of special tokens.
std::vector<std::string> plain_lines() {
  std::vector<std::string> lines;
  const json cases = json_of(fixture("cases.json"));
  for (const json& line : cases["lines"]) {
    const auto& text = line.get_ref<const std::string&>();
    if (text.find('<') == std::string::npos) lines.push_back(text);
  }
  EXPECT_GT(lines.size(), 30u);
  return lines;
}

std::string tokenizer_refusal(const fs::path& path, ErrorCode code = ErrorCode::data) {
  return refusal_of([&] { (void)load_tokenizer(path); }, code);
}

TEST(VocabularyFiles, TiktokenHasTheIdsOfItsTokenizerJson) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const ScratchFolder folder;
  folder.write("own.tiktoken", lines_of(ranked));
  folder.write("tokenizer_config.json",
               json{{"pattern", ranked.pattern}, {"added_tokens_decoder", ranked.special}}.dump());
  const auto ours = load_tokenizer(folder.path());
  const auto theirs = load_tokenizer(fixture("llama3.json"));
  EXPECT_EQ(ours->vocabulary_size(), theirs->vocabulary_size());
  for (const std::string& line : plain_lines()) {
    EXPECT_EQ(ours->encode(line), theirs->encode(line)) << line;
    EXPECT_EQ(ours->decode(ours->encode(line)), theirs->decode(theirs->encode(line))) << line;
  }
  for (const auto& [id, token] : ranked.special.items()) {
    EXPECT_EQ(ours->encode(token["content"].get<std::string>()), std::vector{std::stoi(id)});
  }
}

// openai-whisper's files have it.
TEST(VocabularyFiles, AnEmptyTokenOfTiktokenHasAnId) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const ScratchFolder folder;
  const auto loaded = [&](const std::string& more) {
    folder.write("own.tiktoken", lines_of(ranked) + more);
    folder.write(
        "tokenizer_config.json",
        json{{"pattern", ranked.pattern}, {"added_tokens_decoder", ranked.special}}.dump());
    return load_tokenizer(folder.path());
  };
  const auto without = loaded("");
  const auto id = static_cast<std::int32_t>(without->vocabulary_size());
  const auto with = loaded(fmt::format("= {}\n", id));
  EXPECT_EQ(with->vocabulary_size(), id + 1);
  const std::int32_t alone[] = {id};
  EXPECT_EQ(with->decode(alone), "");
  for (const std::string& line : plain_lines())
    EXPECT_EQ(with->encode(line), without->encode(line));
  EXPECT_TRUE(says(
      refusal_of([&] { (void)loaded(fmt::format("= {}\n== {}\n", id, id + 1)); }, ErrorCode::data),
      "the token '' occurs twice"));
}

TEST(VocabularyFiles, AFileNamedModelMayBeTiktokens) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const ScratchFolder folder;
  folder.write("tokenizer.model", lines_of(ranked));
  folder.write("tokenizer_config.json",
               json{{"pat_str", ranked.pattern}, {"added_tokens_decoder", ranked.special}}.dump());
  const auto theirs = load_tokenizer(fixture("llama3.json"));
  for (const std::string& line : plain_lines()) {
    EXPECT_EQ(load_tokenizer(folder.path())->encode(line), theirs->encode(line)) << line;
  }
}

TEST(VocabularyFiles, TekkenHasItsSpecialTokensFirst) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const ScratchFolder folder;
  folder.write("tekken.json", tekken_of(ranked, 10).dump());
  const auto ours = load_tokenizer(folder.path());
  const auto theirs = load_tokenizer(fixture("llama3.json"));
  for (const std::string& line : plain_lines()) {
    std::vector<std::int32_t> ids = theirs->encode(line);
    for (std::int32_t& id : ids) id += 10;
    EXPECT_EQ(ours->encode(line), ids) << line;
    ids.insert(ids.begin(), 1);
    EXPECT_EQ(ours->encode_sequence(line, 0), ids) << line;
  }
  EXPECT_EQ(ours->encode("<s><SPECIAL_7>"), (std::vector{1, 7}));
}

TEST(VocabularyFiles, VocabJsonAndMergesHaveTheIdsOfGPT2) {
  const json file = json_of(fixture("gpt2.json"));
  std::string merges = "#version: 0.2\n";
  for (const json& merge : file["model"]["merges"]) {
    merges += merge.is_string()
                  ? merge.get<std::string>() + "\n"
                  : merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  }
  const ScratchFolder folder;
  folder.write("vocab.json", file["model"]["vocab"].dump());
  folder.write("merges.txt", merges);
  const auto ours = load_tokenizer(folder.path());
  const auto theirs = load_tokenizer(fixture("gpt2.json"));
  EXPECT_EQ(ours->vocabulary_size(), theirs->vocabulary_size());
  for (const std::string& line : plain_lines()) {
    EXPECT_EQ(ours->encode(line), theirs->encode(line)) << line;
  }
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
  EXPECT_TRUE(says(tokenizer_refusal(folder.path()), "a vocab.json of CLIPTokenizer is not read"));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  EXPECT_TRUE(says(tokenizer_refusal(folder.path()), "which is around every sequence"));
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "y"}}})");
  EXPECT_TRUE(says(tokenizer_refusal(folder.path()), "added_tokens_decoder has the id 'x'"));
  const auto refusal_with = [&](const char* name, const char* text) {
    const fs::path small = folder.write(name, text);
    const std::string message = tokenizer_refusal(folder.path());
    fs::remove(small);
    return message;
  };
  const char* const settings = "tokenizer_config.json";
  for (const char* tokens : {R"([])", R"({"99999999": {"content": "y"}})", R"({"5": {}})"}) {
    const std::string text = fmt::format(R"({{"added_tokens_decoder": {}}})", tokens);
    EXPECT_TRUE(says(refusal_with(settings, text.c_str()), settings)) << text;
  }
  fs::remove(folder.path() / settings);
  EXPECT_TRUE(says(refusal_with("added_tokens.json", R"({"y": -1})"), "added_tokens.json'"));
  EXPECT_TRUE(says(refusal_with("special_tokens_map.json", R"({"bos_token": {"content": 5}})"),
                   "special_tokens_map.json'"));
}

TEST(VocabularyFiles, OfTwoTiktokenFilesNoneIsChosen) {
  const ScratchFolder folder;
  folder.write("a.tiktoken", "IQ== 0\n");
  folder.write("b.tiktoken", "IQ== 0\n");
  EXPECT_TRUE(
      says(refusal_of([&] { (void)load_tokenizer(folder.path()); }, ErrorCode::configuration),
           "the folder holds 2 files of tiktoken's, such as 'a.tiktoken'"));
}

TEST(VocabularyFiles, TiktokenNeedsAPatternAndSpecialTokens) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const ScratchFolder folder;
  const fs::path path = folder.write("own.tiktoken", lines_of(ranked));
  EXPECT_TRUE(says(tokenizer_refusal(path), "neither the pattern of words nor the special tokens"));
  const auto refusal_with = [&](const std::string& pattern) {
    folder.write("tokenizer_config.json",
                 json{{"pattern", pattern}, {"added_tokens_decoder", ranked.special}}.dump());
    return tokenizer_refusal(path);
  };
  for (const char* pattern : {R"(\p{N}{1,3}+|\s+)", R"(\s{2,}+)", R"(\d{1,3}+)", R"(]x{1,2}+)"}) {
    EXPECT_TRUE(says(refusal_with(pattern), "'{n,m}+'")) << pattern;
  }
  EXPECT_TRUE(says(refusal_with(R"(\s++$|\s)"), "'$'"));
  EXPECT_TRUE(says(refusal_with("(a"), "(a"));
}

TEST(VocabularyFiles, DamagedRanksAreRefused) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const std::string lines = lines_of(ranked);
  const ScratchFolder folder;
  folder.write("tokenizer_config.json",
               json{{"pattern", ranked.pattern}, {"added_tokens_decoder", ranked.special}}.dump());
  const auto refusal_for = [&](const std::string& contents) {
    return tokenizer_refusal(folder.write("own.tiktoken", contents));
  };
  for (const char* line : {"*** 5", "YWFhYWFhYQ==", "YWFhYWFhYQ== -1", "YWFhYWFhYQ== 99999999999",
                           "YWFhYWFhYQ== 1 2", " 7", "YWFhYWFhYQ== 20000000"}) {
    EXPECT_TRUE(says(refusal_for(lines + line), "is not a token in base64, a blank and a rank"))
        << line;
  }
  EXPECT_TRUE(says(refusal_for(lines + lines.substr(0, lines.find('\n'))), "occurs twice"));
  EXPECT_TRUE(says(refusal_for(lines + "YWFhYWFhYQ== 5\n"), "have one id or text"));
  EXPECT_TRUE(says(refusal_for("YWFh 0\n"), "no token is the byte 0x00"));
}

TEST(VocabularyFiles, DamagedTekkenIsRefused) {
  const Ranked ranked = ranked_fixture("llama3.json");
  const ScratchFolder folder;
  const auto refusal_after = [&](const std::function<void(json&)>& change) {
    json file = tekken_of(ranked, 10);
    change(file);
    return tokenizer_refusal(folder.write("tekken.json", file.dump()));
  };
  EXPECT_TRUE(says(refusal_after([](json& f) { f.erase("config"); }), "'config'"));
  EXPECT_TRUE(says(refusal_after([](json& f) { f["config"]["default_vocab_size"] = -1; }),
                   "default_vocab_size"));
  EXPECT_TRUE(says(refusal_after([](json& f) { f["config"]["default_num_special_tokens"] = 1e9; }),
                   "default_num_special_tokens"));
  EXPECT_TRUE(says(refusal_after([](json& f) { f["vocab"][3]["token_bytes"] = "!"; }), "base64"));
  EXPECT_TRUE(says(refusal_after([](json& f) { f["vocab"] = 5; }), "vocab is not a list"));
  EXPECT_TRUE(says(refusal_after([](json& f) { f["special_tokens"][0]["rank"] = 10; }),
                   "the special token '<s>' has the id 10, of 10"));
}

}  // namespace
}  // namespace tessera::tokenizers::testing
