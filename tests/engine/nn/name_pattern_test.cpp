// Patterns of recipes and adapters match whole names, in Python's syntax, and are refused if they
// are wrong or would not end.
#include "engine/nn/name_pattern.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace tessera {
namespace {

bool matches(const std::string& expression, const std::string& name) {
  return NamePattern(expression, "here:").matches(name);
}

std::string refusal(const std::string& expression, const std::string& name = "a") {
  try {
    (void)matches(expression, name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    return error.what();
  }
  return "taken";
}

TEST(NamePattern, MatchesTheWholeName) {
  EXPECT_TRUE(matches(R"(.*\.h\.0\..*)", "transformer.h.0.ln_1.weight"));
  EXPECT_FALSE(matches("h", "transformer.h"));
  EXPECT_FALSE(matches("transformer", "transformer.h"));
  EXPECT_TRUE(matches("a|ab", "ab"));  // not only the first alternative's match
  EXPECT_FALSE(matches("q_proj", "up_q_proj"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
}

TEST(NamePattern, AcceptsPatternsOfPeftAndPython) {
  EXPECT_TRUE(matches(R"((?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|k_proj).*?))",
                      "model.language_model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(matches(R"(^(?!.*vision).*\.(?P<which>q|v)_proj$)", "model.layers.0.attn.v_proj"));
  EXPECT_FALSE(matches(R"(^(?!.*vision).*\.(?P<which>q|v)_proj$)", "vision.layers.0.attn.v_proj"));
  EXPECT_TRUE(matches(R"((?<=)layers\.(?:[0-9]|1[0-5])\.\w+)", "layers.12.größe"));
}

TEST(NamePattern, InNamesThatAreNotUtf8OnlyValidPartsMatch) {
  EXPECT_FALSE(matches("a.c",
                       "a\xff"
                       "c"));
  EXPECT_TRUE(matches("a.c",
                      "a\xc3\xbc"
                      "c"));
}

TEST(NamePattern, InvalidPatternsAreRefusedWithThePosition) {
  EXPECT_EQ(refusal("(q"),
            "here: \"(q\" is not a regular expression: missing closing parenthesis, at byte 2");
  EXPECT_NE(refusal("\xff").find("not a regular expression"), std::string::npos);
  EXPECT_NE(refusal("\\C").find("not a regular expression"), std::string::npos);
  EXPECT_NE(refusal("a{" + std::string(60, '9') + "}").find("not a regular expression"),
            std::string::npos);
}

// PCRE2 10.42 reads the digits themselves, 10.46 refuses the number; neither treats it as a group.
TEST(NamePattern, NoReferenceHasSixtyDigits) {
  const std::string digits(60, '9');
  const std::string said = refusal("\\" + digits);
  if (said == "taken") {
    EXPECT_TRUE(matches("\\" + digits, digits));
    EXPECT_FALSE(matches("\\" + digits, "a"));
  } else {
    EXPECT_NE(said.find("\" is not a regular expression: "), std::string::npos) << said;
    EXPECT_NE(said.find(", at byte "), std::string::npos) << said;
  }
}

TEST(NamePattern, NothingGoesDeepOrOnForEver) {
  EXPECT_NE(
      refusal(std::string(8000, '(') + std::string(8000, ')')).find("not a regular expression"),
      std::string::npos);
  EXPECT_NE(refusal(std::string(20000, 'a')).find("20000 bytes"), std::string::npos);
  EXPECT_NE(refusal("((a{999}){999}){999}").find("not a regular expression"), std::string::npos);
  EXPECT_NE(refusal("(a+)+[bc]", std::string(200, 'a')).find("gives up on the name a"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
