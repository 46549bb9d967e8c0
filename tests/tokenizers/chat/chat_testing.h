// Short ways to render a template in a test.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "tokenizers/chat/chat_template.h"

namespace tessera::tokenizers {

inline nlohmann::ordered_json two_messages() {
  return nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}])");
}

// The template's text for these messages; `variables` is an object of JSON.
inline std::string render_text(const std::string& text, const std::string& variables = "{}",
                               const nlohmann::ordered_json& messages = two_messages()) {
  const ChatTemplate parsed(text, "template", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const Conversation conversation{.messages = messages,
                                  .variables = nlohmann::ordered_json::parse(variables)};
  return parsed.render(conversation).text;
}

// The message of the error that parsing or rendering gives.
inline std::string render_error(const std::string& text, const std::string& variables = "{}") {
  try {
    const std::string made = render_text(text, variables);
    ADD_FAILURE() << "no error: " << made.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data) << error.what();
    return error.what();
  }
  return {};
}

}  // namespace tessera::tokenizers
