// Where the answers of a conversation are: by {% generation %} blocks, by the texts of its
// beginnings, behind a prompt; and what has no such place.
#include <gtest/gtest.h>

#include "tasks/conversations/conversation_texts.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

constexpr const char* plain_template =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == "
    "'assistant' "
    "%}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

class Answers : public ::testing::Test {
 protected:
  explicit Answers(const std::string& chat_template = plain_template) { use(chat_template); }
  void use(const std::string& chat_template) const {
    std::filesystem::create_directories(folder_.path("tokenizer"));
    folder_.write("tokenizer/chat_template.jinja", chat_template);
    folder_.write("tokenizer/tokenizer_config.json", R"({"bos_token": "^", "eos_token": "$"})");
  }
  [[nodiscard]] ConversationText answered(const std::string& json) const {
    const auto row = nlohmann::ordered_json::parse(json);
    std::vector<std::string> names;
    for (const auto& item : row.items()) names.push_back(item.key());
    ConversationTexts texts(folder_.path("tokenizer"), 0);
    return texts.answered_text(
        conversation_of(row, conversation_columns(names, {}, "row 3"), "row 3"), "row 3");
  }
  // The answers, each in brackets.
  [[nodiscard]] static std::string marked(const ConversationText& made) {
    std::string text = made.text;
    for (auto answer = made.answers.rbegin(); answer != made.answers.rend(); ++answer) {
      text.insert(answer->second, "]");
      text.insert(answer->first, "[");
    }
    return text;
  }
  void expect_refused(const std::string& json, const std::string& problem) const {
    try {
      ADD_FAILURE() << "taken: " << marked(answered(json));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_EQ(std::string(error.what()).find("row 3: "), 0U) << error.what();
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
    }
  }
  DataFolder folder_;
};

const char* const two_turns = R"({"messages": [
    {"role": "system", "content": "s"}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}]})";

TEST_F(Answers, AreBehindTheTextsOfTheMessagesBefore) {
  EXPECT_EQ(marked(answered(two_turns)), "^<system>s<user>a<assistant>[b$]<user>c<assistant>[d$]");
  EXPECT_EQ(marked(answered(R"({"conversations": [{"from": "human", "value": "a"},
                                                  {"from": "gpt", "value": "b"}]})")),
            "^<user>a<assistant>[b$]");
  EXPECT_EQ(marked(answered(R"({"messages": [{"role": "user", "content": "a"}]})")), "^<user>a");
  // One answer after another.
  EXPECT_EQ(marked(answered(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]})")),
            "^<user>a<assistant>[b$]<assistant>[c$]");
}

TEST_F(Answers, AreWhatTheTemplateMarks) {
  use("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}");
  EXPECT_EQ(marked(answered(two_turns)), "<system>s<user>a<assistant>[b]$<user>c<assistant>[d]$");
}

TEST_F(Answers, OfAPromptAreTheCompletion) {
  const ConversationText texts = answered(R"({"prompt": "a b", "completion": " c"})");
  EXPECT_EQ(marked(texts), "a b[ c]");
  EXPECT_TRUE(texts.needs_end);
  EXPECT_EQ(marked(answered(R"({"prompt": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
      "completion": [{"role": "assistant", "content": "d"}]})")),
            "^<user>a<assistant>b$<user>c<assistant>[d$]");
}

TEST_F(Answers, OfATemplateThatRewritesEarlierMessagesAreRefused) {
  use("{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else '' "
      "}}"
      "{% endfor %}");
  expect_refused(two_turns, "the chat template gives message 3 another text than the whole");
  expect_refused(R"({"messages": [{"role": "assistant", "content": "a"},
                                  {"role": "user", "content": "b"}]})",
                 "the first message is the assistant's");
}

TEST_F(Answers, OfAWrongOrderOfRolesAreTheTemplatesError) {
  use("{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}");
  expect_refused(two_turns, "roles must alternate");
}

std::string counted_letters(const ConversationTokens& tokens) {
  std::string text;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.counts[i]) text += static_cast<char>(tokens.ids[i]);
  }
  return text;
}

TEST_F(Answers, CountAsTokensWithTheEndOfTheText) {
  const ByteTokenizer bytes;
  EXPECT_EQ(counted_letters(tokens_of_answers(answered(two_turns), bytes)), "b$d$");
  const ConversationTokens end =
      tokens_of_answers(answered(R"({"prompt": "ab", "completion": "cd"})"), bytes);
  EXPECT_EQ(counted_letters(end), "cd\n");
  EXPECT_EQ(end.ids.size(), 5U);
  // A completion without a letter has its end alone.
  EXPECT_EQ(
      counted_letters(tokens_of_answers(answered(R"({"prompt": "ab", "completion": ""})"), bytes)),
      "\n");
}

}  // namespace
}  // namespace tessera::tasks
