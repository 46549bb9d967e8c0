// Templates and special tokens are found where transformers looks for them.
#include "tokenizers/chat/template_files.h"

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"
#include "tokenizers/chat/chat_testing.h"

namespace tessera::tokenizers {
namespace {

class ChatTemplateFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& contents) {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
  }
  [[nodiscard]] std::string text(bool has_tools = false, const std::string& file = "") const {
    Conversation conversation{.messages = two_messages()};
    if (has_tools) conversation.tools = nlohmann::ordered_json::array();
    const ChatTemplates loaded = ChatTemplates::load(folder_.path().string(), file);
    return loaded.choose(conversation).render(conversation).text;
  }
  tessera::testing::TemporaryFolder folder_;
};

TEST_F(ChatTemplateFiles, AFileGoesBeforeTheConfiguration) {
  write("tokenizer_config.json", R"({"chat_template": "C", "bos_token": "<s>",
                                     "eos_token": {"content": "</s>", "lstrip": false}})");
  EXPECT_EQ(text(), "C");
  write("chat_template.jinja", "F{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}\n");
  EXPECT_EQ(text(), "F<s></s>False");
  write("other.jinja", "O{{ bos_token }}");
  EXPECT_EQ(text(false, (folder_.path() / "other.jinja").string()), "O<s>");
}

TEST_F(ChatTemplateFiles, ToolsHaveATemplateOfTheirOwn) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "D"},
                                                       {"name": "tool_use", "template": "T"}]})");
  EXPECT_EQ(text(), "D");
  EXPECT_EQ(text(true), "T");
  write("additional_chat_templates/tool_use.jinja", "A");
  write("chat_template.jinja", "F");
  EXPECT_EQ(text(), "F");
  EXPECT_EQ(text(true), "A");
}

TEST_F(ChatTemplateFiles, TheOlderMapCountsWithoutAListOfTokens) {
  write("chat_template.jinja", "{{ bos_token }}");
  write("special_tokens_map.json", R"({"bos_token": "M"})");
  write("tokenizer_config.json", R"({"bos_token": "C"})");
  EXPECT_EQ(text(), "M");
  write("tokenizer_config.json", R"({"bos_token": "C", "added_tokens_decoder": {}})");
  EXPECT_EQ(text(), "C");
}

TEST_F(ChatTemplateFiles, WhatIsMissingOrDamagedIsNamed) {
  const auto error = [&] {
    try {
      (void)text();
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string();
  };
  EXPECT_NE(error().find("has no chat template; put a chat_template.jinja beside it"),
            std::string::npos);
  EXPECT_THROW((void)ChatTemplates::load("bytes"), Error);
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_NE(error().find("neither a text nor a list"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": "{{ 1 + }}"})");
  EXPECT_NE(error().find("chat template default in '"), std::string::npos) << error();
}

TEST_F(ChatTemplateFiles, FingerprintsFollowTemplatesAndTokens) {
  write("chat_template.jinja", "x");
  const auto fingerprint = [&] {
    return ChatTemplates::load(folder_.path().string()).fingerprint();
  };
  const std::uint64_t first = fingerprint();
  EXPECT_EQ(fingerprint(), first);
  write("tokenizer_config.json", R"({"bos_token": "C"})");
  const std::uint64_t second = fingerprint();
  EXPECT_NE(second, first);
  write("chat_template.jinja", "y");
  EXPECT_NE(fingerprint(), second);
}

}  // namespace
}  // namespace tessera::tokenizers
