// Rows of every form become a prompt with two answers, and what is none is refused with its place.
#include "tasks/conversations/preference.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera::tasks {
namespace {

PreferenceRow pair_of(const std::string& json, const std::vector<std::string>& named = {}) {
  const auto row = nlohmann::ordered_json::parse(json);
  std::vector<std::string> names;
  for (const auto& item : row.items()) names.push_back(item.key());
  return preference_of(row, preference_columns(names, named, "row 3"), "row 3");
}

void expect_no_pair(const std::string& json, const std::string& problem,
                    const std::vector<std::string>& named = {}, ErrorCode code = ErrorCode::data) {
  try {
    (void)pair_of(json, named);
    ADD_FAILURE() << "taken: " << json;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(std::string(error.what()).find("row 3: "), 0U) << error.what();
    EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
  }
}

std::string user(const std::string& text) {
  return R"({"role":"user","content":")" + text + R"("})";
}
std::string assistant(const std::string& text) {
  return R"({"role":"assistant","content":")" + text + R"("})";
}

void expect_messages(const PreferenceRow& pair) {
  EXPECT_EQ(pair.chosen.conversation.messages.dump(), "[" + user("q") + "," + assistant("a") + "]");
  EXPECT_EQ(pair.rejected.conversation.messages.dump(),
            "[" + user("q") + "," + assistant("b") + "]");
  EXPECT_EQ(pair.chosen.prompt_messages, 1U);
  EXPECT_EQ(pair.rejected.prompt_messages, 1U);
}

TEST(PreferenceRows, EveryFormOfMessagesIsRead) {
  const std::string prompt = "[" + user("q") + "]";
  const std::string answers =
      R"("chosen": [)" + assistant("a") + R"(], "rejected": [)" + assistant("b") + "]";
  const std::string wholes = R"("chosen": [)" + user("q") + "," + assistant("a") +
                             R"(], "rejected": [)" + user("q") + "," + assistant("b") + "]";
  expect_messages(pair_of(R"({"prompt": )" + prompt + "," + answers + "}"));
  expect_messages(pair_of("{" + wholes + "}"));
  // A prompt that is a text beside whole conversations says again what they begin with.
  expect_messages(pair_of(R"({"prompt": "q", )" + wholes + "}"));
  expect_messages(pair_of("{" + wholes + "}", {"chosen", "rejected"}));
  expect_messages(pair_of(R"({"p": )" + prompt + "," + answers + "}", {"p", "chosen", "rejected"}));
  const auto tools = pair_of(R"({"tools": [{"name": "t"}], )" + wholes + "}");
  EXPECT_EQ(tools.rejected.conversation.tools.dump(), R"([{"name":"t"}])");
}

TEST(PreferenceRows, TextsHaveTheirPromptOrTheirCommonBeginning) {
  const PreferenceRow given = pair_of(R"({"prompt": "q", "chosen": "xa", "rejected": "xb"})");
  EXPECT_EQ(given.chosen.prompt, "q");
  EXPECT_EQ(given.chosen.completion, "xa");
  EXPECT_EQ(given.rejected.completion, "xb");
  const auto split = [](const std::string& chosen, const std::string& rejected) {
    const PreferenceRow pair =
        pair_of(R"({"chosen": ")" + chosen + R"(", "rejected": ")" + rejected + R"("})");
    EXPECT_EQ(pair.chosen.prompt, pair.rejected.prompt);
    EXPECT_EQ(pair.chosen.prompt + pair.chosen.completion, chosen);
    EXPECT_EQ(pair.rejected.prompt + pair.rejected.completion, rejected);
    return pair.chosen.prompt;
  };
  EXPECT_EQ(split("is blue", "is green"), "is");               // the space belongs to the answers
  EXPECT_EQ(split("is a", "is ab"), "is a");                   // which leaves the chosen one empty
  EXPECT_EQ(split("\u00e4\u00f6", "\u00e4\u00fc"), "\u00e4");  // no half of a character
  EXPECT_EQ(split("a", "b"), "");
}

// They are left out later, and counted.
TEST(PreferenceRows, EmptyAndEqualAnswersAreTaken) {
  const std::string two = "[" + user("q") + "," + assistant("a") + "]";
  const PreferenceRow equal = pair_of(R"({"chosen": )" + two + R"(, "rejected": )" + two + "}");
  EXPECT_EQ(equal.chosen.prompt_messages, 1U);
  EXPECT_EQ(equal.chosen.conversation.messages, equal.rejected.conversation.messages);
  const PreferenceRow shorter =
      pair_of(R"({"chosen": [)" + user("q") + R"(], "rejected": )" + two + "}");
  EXPECT_EQ(shorter.chosen.conversation.messages.size(), shorter.chosen.prompt_messages);
  EXPECT_EQ(shorter.rejected.conversation.messages.size(), 2U);
}

TEST(PreferenceRows, WhatIsNoPairIsRefused) {
  expect_no_pair(R"({"prompt": "q", "completion": "a"})",
                 "no columns chosen and rejected; it has prompt, completion");
  expect_no_pair(R"({"chosen": "a", "rejected": null})",
                 "column rejected is null, neither a text nor a list of messages");
  expect_no_pair(R"({"chosen": "a", "rejected": [)" + assistant("b") + "]}",
                 "chosen and rejected are a text and a list");
  expect_no_pair(R"({"prompt": [)" + user("q") + R"(], "chosen": "a", "rejected": "b"})",
                 "prompt and chosen are a text and a list");
  expect_no_pair(R"({"chosen": [)" + assistant("a") + R"(], "rejected": [)" + assistant("b") + "]}",
                 "begin with no message in common, which is the prompt");
  expect_no_pair(R"({"prompt": [], "chosen": [], "rejected": []})",
                 "column prompt is an empty list");
  expect_no_pair(R"({"chosen": "a", "rejected": "b"})", "no column worse", {"chosen", "worse"});
  expect_no_pair(R"({"chosen": "a", "rejected": "b"})", "one column is named", {"chosen"},
                 ErrorCode::configuration);
}

}  // namespace
}  // namespace tessera::tasks
