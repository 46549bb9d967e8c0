// Rows of every form become conversations, and what is none is refused with its place.
#include "tasks/conversations/conversation.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera::tasks {
namespace {

ConversationRow row_of(const std::string& json, const std::vector<std::string>& named = {}) {
  const auto row = nlohmann::ordered_json::parse(json);
  std::vector<std::string> names;
  for (const auto& item : row.items()) names.push_back(item.key());
  return conversation_of(row, conversation_columns(names, named, "row 3"), "row 3");
}

void expect_refused(const std::string& json, const std::string& problem) {
  try {
    (void)row_of(json);
    ADD_FAILURE() << "taken: " << json;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_EQ(std::string(error.what()).find("row 3: "), 0U) << error.what();
    EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
  }
}

TEST(ConversationRows, EveryFormIsRead) {
  const std::string expected =
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])";
  const std::string prompt = R"([{"role": "user", "content": "a"}])";
  const std::string answer = R"([{"role": "assistant", "content": "b"}])";
  EXPECT_EQ(row_of(R"({"messages": )" + expected + "}").conversation.messages.dump(), expected);
  EXPECT_EQ(row_of(R"({"x": )" + expected + "}", {"x"}).conversation.messages.dump(), expected);
  EXPECT_EQ(row_of(R"({"conversations": [{"from": "human", "value": "a"},
                                         {"from": "gpt", "value": "b"}]})")
                .conversation.messages.dump(),
            expected);
  const ConversationRow both =
      row_of(R"({"prompt": )" + prompt + R"(, "completion": )" + answer + "}");
  EXPECT_EQ(both.conversation.messages.dump(), expected);
  EXPECT_EQ(both.prompt_messages, 1U);
  const ConversationRow texts = row_of(R"({"q": "a", "r": "b"})", {"q", "r"});
  EXPECT_TRUE(texts.conversation.messages.is_null());
  EXPECT_EQ(texts.prompt + texts.completion, "ab");
}

TEST(ConversationRows, ToolsAndVariablesAreTakenAlong) {
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  const auto conversation = row_of("{" + messages +
                                   R"(, "tools": "[{\"b\": 1, \"a\": 2}]",
                                      "chat_template_kwargs": {"enable_thinking": false}})")
                                .conversation;
  EXPECT_EQ(conversation.tools.dump(), R"([{"b":1,"a":2}])");
  EXPECT_EQ(conversation.variables.dump(), R"({"enable_thinking":false})");
  EXPECT_TRUE(row_of("{" + messages + R"(, "tools": null})").conversation.tools.is_null());
  expect_refused("{" + messages + R"(, "tools": "x"})",
                 "the text of column 'tools': not valid JSON");
  expect_refused("{" + messages + R"(, "tools": {}})", "column tools is object");
  expect_refused("{" + messages + R"(, "chat_template_kwargs": []})", "is array, not an object");
}

TEST(ConversationRows, WhatIsNoConversationIsRefused) {
  expect_refused(R"({"text": "a"})", "no column messages");
  expect_refused(R"({"prompt": "a"})", "it has prompt");
  expect_refused(R"({"messages": null})", "column messages is null");
  expect_refused(R"({"messages": []})", "an empty list");
  expect_refused(R"({"messages": "a"})", "string, not a list");
  expect_refused(R"({"messages": ["a"]})", "a message is string");
  expect_refused(R"({"messages": [{"content": "a"}]})", "neither role and content");
  expect_refused(R"({"messages": [{"role": 3}]})", "the role of a message is number");
  expect_refused(R"({"conversations": [{"from": "bing", "value": "a"}]})", "\"bing\"");
  expect_refused(R"({"conversations": [{"from": "gpt"}]})", "no text in value");
  expect_refused(R"({"prompt": "a", "completion": []})", "a text and a list");
}

}  // namespace
}  // namespace tessera::tasks
