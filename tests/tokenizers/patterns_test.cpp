// Patterns mean what they mean to the package `tokenizers`, whichever engine matches them, and none
// takes more than a moment or the machine's stack.
#include <dlfcn.h>

#include <chrono>
#include <random>
#include <sstream>
#include <vector>

#include "tokenizers/fixtures_testing.h"
#include "tokenizers/text/pattern.h"
#include "tokenizers/text/pattern_engines.h"

namespace tessera::tokenizers::testing {
namespace {

using nlohmann::json;

std::vector<std::int32_t> ids_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::int32_t>(stream), {}};
}

// Ids of the package for the patterns of Kimi K2, BLOOM, GPT's and others, and for each of
// Oniguruma's constructs; each cut between words changes an id.
TEST(TokenizerPatterns, IdsOfThePackage) {
  const json file = json_of(fixture("patterns.json"));
  ASSERT_GE(file["cases"].size(), 80u);
  const ScratchFolder folder;
  for (const json& tried : file["cases"]) {
    json tokenizer_file = file["tokenizer"];
    tokenizer_file["pre_tokenizer"] = tried["pre_tokenizer"];
    tokenizer_file["normalizer"] = tried["normalizer"];
    const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", tokenizer_file.dump()));
    for (std::size_t i = 0; i < file["lines"].size(); ++i) {
      const std::string line = file["lines"][i].get<std::string>();
      EXPECT_EQ(tokenizer->encode(line), ids_of(tried["ids"][i].get<std::string>()))
          << tried["pre_tokenizer"] << tried["normalizer"] << ": " << line;
    }
  }
}

const char* const shared[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N})",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+| ?[\p{P}\p{S}]+[\r\n]*)",
    " {2,}",
    "[,;?!]",
    "[a-z]{3}",
    "[-a]+|[b-]{2}",
    "[一-龥ぁ-ゟ]+|é",
    R"((?:ab|a|\P{L})?(?=b|\S)|\t)",
};

TEST(TokenizerPatterns, SharedSyntaxIsSmall) {
  for (const char* const expression : shared)
    EXPECT_TRUE(is_shared_syntax(expression)) << expression;
  for (const char* const expression : {R"([\p{L}&&[^\p{Han}]]+)",
                                       "[a-z[0-9]]",
                                       R"(\h)",
                                       "a{,3}",
                                       "a{1,3}+",
                                       "a++",
                                       "a+?",
                                       "a{3,1}",
                                       "[[:punct:]]",
                                       R"(\b)",
                                       R"(\w)",
                                       R"(\d)",
                                       R"([\w])",
                                       "^a",
                                       "a$",
                                       ".",
                                       "(a)",
                                       "(?i)a",
                                       "(?i:ss)",
                                       "(?:a*)*",
                                       "(?:a)+",
                                       "(?=a)?",
                                       "[a-c-e]",
                                       R"([\s-a])",
                                       R"([a-\s])",
                                       "[]a]",
                                       "[",
                                       "a]",
                                       "a)",
                                       "(?:a",
                                       R"(\p{Han})",
                                       R"(\p{Script=Han})",
                                       R"(\u4e00)",
                                       R"(\x41)",
                                       "(?<=a)b",
                                       "(?>a)",
                                       R"(\)",
                                       "*a",
                                       "a{",
                                       R"(\<)",
                                       R"(\e)",
                                       R"(\K)",
                                       R"((?:'s)??)",
                                       "(?#a)"}) {
    EXPECT_FALSE(is_shared_syntax(expression)) << expression;
  }
}

std::vector<std::size_t> cuts_of(const PatternCode& code, const std::string& text) {
  const auto search = code.search();
  std::vector<std::size_t> cuts;
  Pattern::Matcher::Match match;
  for (std::size_t from = 0; from <= text.size() && search->find(text, from, match);) {
    cuts.insert(cuts.end(), {match.begin, match.end});
    from = match.end;
    if (match.end > match.begin) continue;
    do ++from;
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U);
  }
  return cuts;
}

TEST(TokenizerPatterns, BothEnginesMatchTheSharedSyntaxAlike) {
  const char* const pieces[] = {
      "a",    "b",  "ab",     "Z",      "'s",     "'S",     "'\u017f", "'ll", "'LL", "é",
      "É",    "ǅ",  "中",     "か",     "3",      "٣",      "½",       " ",   "  ",  "\t",
      "\r\n", "\n", "\u00a0", "\u2003", "\u0085", "\v",     "\f",      "-",   "_",   "[",
      "\\",   "]",  "`",      "😀",      "\u0301", "\u200d", "!",       "。"};
  std::mt19937 draw(20261126);
  for (const char* const expression : shared) {
    const auto ours = compile_with_pcre2(expression, "shared");
    const auto theirs = compile_with_oniguruma(expression, "shared");
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (unsigned length = draw() % 40; length > 0; --length)
        text += pieces[draw() % std::size(pieces)];
      EXPECT_EQ(cuts_of(*ours, text), cuts_of(*theirs, text)) << expression << ": " << text;
    }
  }
}

// All that a pattern does with a text.
std::size_t count_matches(const std::string& expression, const std::string& text) {
  const Pattern pattern(expression, "file.pattern");
  Pattern::Matcher matcher(pattern);
  Pattern::Matcher::Match match;
  std::size_t count = 0;
  for (std::size_t from = 0; from < text.size() && matcher.find(text, from, match); ++count) {
    from = std::max(match.end, from + 1);
  }
  return count;
}

// Each takes hours, or more stack or memory than there is, unless it is stopped.
TEST(TokenizerPatterns, CostlyOnesGiveUpByName) {
  const struct {
    const char* expression;
    std::string text;
  } costly[] = {
      {"(a+)+(b|c)", std::string(64, 'a')},
      {"(?:a|aa)+(b|c)", std::string(80, 'a')},
      {"([[a]]+)+(!|b)", std::string(4000, 'a')},
      {"[[a]]+!", std::string(400'000, 'a') + "-!"},
      {"(?:.|\\w)+(b|c)", std::string(9'000'000, 'a')},
  };
  for (const auto& each : costly) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string message =
        refusal_of([&] { count_matches(each.expression, each.text); }, ErrorCode::data);
    EXPECT_TRUE(says(message, "gives up on a text of")) << each.expression << ": " << message;
    EXPECT_TRUE(says(message, each.expression)) << message;
    EXPECT_TRUE(says(message, "shorter lines")) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60))
        << each.expression;
  }
}

// A search goes on character by character, also behind the place where it began.
// Oniguruma has functions of the same names; other libraries of the process call the C library's.
TEST(TokenizerPatterns, LeaveTheCLibrarysExpressionsAlone) {
  (void)Pattern("(?<a>b)\\k<a>", "test");  // loads the engine
  for (const char* name : {"regcomp", "regexec", "regfree"}) {
    Dl_info place{};
    ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, name), &place), 0) << name;
    EXPECT_EQ(std::string(place.dli_fname).find("onig"), std::string::npos)
        << name << " of " << place.dli_fname;
  }
}

TEST(TokenizerPatterns, FindsWhatIsFarAway) {
  for (std::size_t before = 1000; before < 1060; ++before) {
    const std::string text = std::string(before, 'a') + "é中😀" + std::string(3000, 'a') + "b12é";
    const Pattern pattern(R"([[:digit:]]+é|(?<=a)é\S)", "file.pattern");
    Pattern::Matcher matcher(pattern);
    Pattern::Matcher::Match match;
    ASSERT_TRUE(matcher.find(text, 0, match));
    EXPECT_EQ(text.substr(match.begin, match.end - match.begin), "é中");
    ASSERT_TRUE(matcher.find(text, match.end, match));
    EXPECT_EQ(text.substr(match.begin, match.end - match.begin), "12é");
    EXPECT_FALSE(matcher.find(text, match.end, match));
    // \\G is the place of the search alone.
    const Pattern anchored(R"(\Gb)", "file.pattern");
    Pattern::Matcher at_place(anchored);
    EXPECT_FALSE(at_place.find(text, 0, match));
    EXPECT_TRUE(at_place.find(text, text.size() - 5, match));
  }
}

TEST(TokenizerPatterns, DeepAndLongExpressions) {
  const auto refusal = [](const std::string& expression) {
    return refusal_of([&] { const Pattern pattern(expression, "file.pattern"); }, ErrorCode::data);
  };
  EXPECT_TRUE(says(refusal(std::string(30'000, '(')), "file.pattern"));
  EXPECT_TRUE(says(refusal(std::string(30'000, '(') + "a" + std::string(30'000, ')')), "'((((("));
  EXPECT_TRUE(says(refusal(std::string(30'000, '[')), "not understood"));
  EXPECT_TRUE(says(refusal("a" + std::string(30'000, '*')), "not understood"));
  EXPECT_TRUE(says(refusal("[[" + std::string(70'000, 'a') + "]]"), "at most 65536"));
  EXPECT_TRUE(says(refusal(R"(\p{Script=Han})"), R"(\p{Script=Han})"));
  EXPECT_EQ(count_matches("", "abc"), 3u);
}

}  // namespace
}  // namespace tessera::tokenizers::testing
