// The conversations of files as tokens: those of JSON lines and Arrow are the same, they are
// encoded once, and what is not a conversation is refused with its row.
#include "tasks/columnar/conversation_corpus.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

class ConversationCorpusTest : public ::testing::Test {
 protected:
  ConversationCorpusTest() {
    fs::create_directories(folder_.path("tokenizer"));
    folder_.write("tokenizer/chat_template.jinja",
                  "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                  "{% if add_generation_prompt %}<assistant>{% endif %}");
    folder_.write("tokenizer/tokenizer_config.json", "{}");
  }
  [[nodiscard]] TableText lines(const std::string& text) const {
    return {{{folder_.write("rows.jsonl", text), TableFileKind::json_lines, {}}},
            {},
            folder_.path("tokenizer")};
  }
  [[nodiscard]] std::string refusal(const std::string& text) const {
    return testing::error_of(
        [&] { const ConversationCorpus none(lines(text), ByteTokenizer(), LossOn::answers); },
        ErrorCode::data);
  }
  [[nodiscard]] int derived_files() const {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path(""))) {
      files += entry.path().extension() == ".conversations" ? 1 : 0;
    }
    return files;
  }
  DataFolder folder_;
};

TEST_F(ConversationCorpusTest, RowsAreFoundByNumber) {
  const ConversationCorpus corpus(lines(R"({"messages": [{"role": "user", "content": "a"}]})"
                                        "\n"
                                        R"({"messages": [{"role": "user", "content": "b"}, )"
                                        R"({"role": "assistant", "content": "cd"}]})"
                                        "\n"
                                        R"({"prompt": "x", "completion": "y"})"
                                        "\n"),
                                  ByteTokenizer(), LossOn::answers);
  ASSERT_EQ(corpus.rows(), 3);
  EXPECT_EQ(corpus.tokens(0), 7);
  EXPECT_EQ(corpus.first_that_counts(0), 0);
  EXPECT_EQ(corpus.tokens(1), 20);
  EXPECT_EQ(corpus.first_that_counts(1), 18);
  EXPECT_EQ(corpus.first_that_counts(2), 1);
  const ConversationTokens read = corpus.read(1, 19);
  EXPECT_EQ(ByteTokenizer().decode(read.ids), "<user>b<assistant>c");
  EXPECT_FALSE(read.counts[17]);
  EXPECT_TRUE(read.counts[18]);
  EXPECT_EQ(derived_files(), 1);
  // The loss on all tokens is another file.
  const ConversationCorpus all(lines(R"({"prompt": "x", "completion": "y"})"
                                     "\n"),
                               ByteTokenizer(), LossOn::all);
  EXPECT_EQ(all.first_that_counts(0), 1);
  EXPECT_NE(all.fingerprint(), corpus.fingerprint());
}

TEST_F(ConversationCorpusTest, ARowIsDescribedByItsPlaceAndRoles) {
  const ConversationCorpus corpus(lines("\n"
                                        R"({"prompt": "x", "completion": ""})"
                                        "\n\n"
                                        R"({"messages": [{"role": "user", "content": "b"}, )"
                                        R"({"role": "bot", "content": "c"}, )"
                                        R"({"role": "user", "content": "d"}]})"
                                        "\n"),
                                  ByteTokenizer(), LossOn::answers);
  ASSERT_EQ(corpus.rows(), 2);
  const std::string file = "text " + folder_.path("rows.jsonl");
  EXPECT_EQ(corpus.describe(0), file + ", line 2, with a completion that has no text");
  EXPECT_EQ(corpus.describe(1), file + ", line 4, with the roles user, bot");
}

TEST_F(ConversationCorpusTest, ArrowFilesHaveTheSameRows) {
  const std::string path = folder_.path("messages.arrow");
  fs::copy_file(columnar_fixture("messages.arrow"), path);
  const TableText table{find_table_files({path}).value(), {"messages"}, folder_.path("tokenizer")};
  const ConversationCorpus corpus(table, ByteTokenizer(), LossOn::all);
  std::string written;
  for (const auto& row : read_rows(path, {"messages"})) {
    written += nlohmann::json{{"messages", row[0]}}.dump() + "\n";
  }
  const ConversationCorpus from_lines(lines(written), ByteTokenizer(), LossOn::all);
  ASSERT_GT(corpus.rows(), 1);
  EXPECT_EQ(corpus.fingerprint(), from_lines.fingerprint());
  EXPECT_NE(corpus.describe(1).find("messages.arrow, row 2, with the role"), std::string::npos)
      << corpus.describe(1);
}

TEST_F(ConversationCorpusTest, WhatIsNoConversationIsRefusedWithItsRow) {
  EXPECT_NE(refusal("").find("has no conversations"), std::string::npos) << refusal("");
  const std::string good = R"({"prompt": "x", "completion": "y"})"
                           "\n";
  EXPECT_NE(refusal(good + R"({"messages": []})"
                           "\n")
                .find("line 2: column messages is an empty"),
            std::string::npos);
  EXPECT_NE(refusal(good + R"({"text": "a"})"
                           "\n")
                .find("line 2: no column messages"),
            std::string::npos);
  EXPECT_EQ(derived_files(), 0);
  fs::remove(folder_.path("tokenizer/chat_template.jinja"));
  try {
    const ConversationCorpus none(lines(R"({"messages": [{"role": "user", "content": "a"}]})"
                                        "\n"),
                                  ByteTokenizer(), LossOn::answers);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    EXPECT_NE(std::string(error.what()).find("chat template"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::tasks
