// Columns of messages become the tokens of the tokenizer's chat template, from every kind of file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"
#include "tasks/columnar/columnar_testing.h"
#include "tasks/columnar/table_corpus.h"
#include "tasks/columnar/table_json.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

class ConversationRowsTest : public ::testing::Test {
 protected:
  ConversationRowsTest() {
    write("tokenizer/chat_template.jinja",
          "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
          "{{ m.calls | tojson if m.calls }}{% endfor %}{{ tools | tojson if tools }}{{ eos_token "
          "}}");
    write("tokenizer/tokenizer_config.json", R"({"eos_token": "$"})");
  }

  std::string write(const std::string& name, const std::string& contents) const {
    fs::create_directories((folder_ / name).parent_path());
    return folder_.write(name, contents).string();
  }
  [[nodiscard]] TableText messages(const std::vector<std::string>& columns) const {
    const fs::path path = folder_ / "messages.arrow";
    fs::copy_file(columnar_fixture("messages.arrow"), path, fs::copy_options::overwrite_existing);
    return {find_table_files({path.string()}).value(), columns, (folder_ / "tokenizer").string()};
  }
  [[nodiscard]] TableText lines(const std::string& text,
                                const std::vector<std::string>& columns) const {
    const std::string path = write("rows.jsonl", text);
    return {{{path, TableFileKind::json_lines, {}}}, columns, (folder_ / "tokenizer").string()};
  }

  static std::string text_of(const TableText& table, int workers = 1) {
    const auto corpus = open_table_corpus(table, ByteTokenizer(), workers);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus->tokens()));
    corpus->read(0, ids);
    return ByteTokenizer().decode(ids);
  }
  static std::string refusal(const TableText& table, ErrorCode code = ErrorCode::data) {
    try {
      (void)text_of(table);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return {};
  }

  tessera::testing::TemporaryFolder folder_;
};

TEST_F(ConversationRowsTest, ListsOfStructsAreReadAsPyarrowReadsThem) {
  const std::vector<nlohmann::json> expected = expected_lines("messages.arrow");
  const auto rows =
      read_rows(columnar_fixture("messages.arrow"), expected[0].get<std::vector<std::string>>());
  ASSERT_EQ(rows.size() + 1, expected.size());
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], expected[i + 1]) << i;
}

TEST_F(ConversationRowsTest, MessagesOfArrowAreRendered) {
  const std::string text = text_of(messages({}));
  EXPECT_EQ(text.find("<user>question 0 é<assistant>yes$<user>question 1 é<assistant>yes"
                      "[{\"b\": 1, \"a\": 2}]$<user>question 2 é<assistant>[{\"name\": \"f\", "
                      "\"arguments\": {\"x\": 1, \"words\": [\"a\", null]}}]$"),
            0U)
      << text;
  EXPECT_EQ(text_of(messages({"messages"}), 3), text);
  EXPECT_EQ(text_of(messages({"question", "answer"})), text);
  EXPECT_EQ(text_of(messages({"speakers"})).find("<user>0<assistant>no$<user>1"), 0U);
  // Two texts: the tokenizer ends them.
  EXPECT_EQ(text_of(messages({"first", "second"})).find("q0a0\nq1a1\n"), 0U);
}

TEST_F(ConversationRowsTest, JsonLinesHaveThoseOfArrow) {
  const std::string row =
      R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"z": 1}]})";
  EXPECT_EQ(text_of(lines(row + "\n" + row + "\n", {"messages"})),
            "<user>a[{\"z\": 1}]$<user>a[{\"z\": 1}]$");
  EXPECT_EQ(text_of(lines(R"({"json": )" + row + "}", {"json.messages"})), "<user>a$");
  EXPECT_EQ(text_of(lines(R"({"p": "x", "c": "y"})", {"p", "c"})), "xy\n");
  EXPECT_EQ(text_of(lines(R"({"meta": {"text": "x"}})", {"meta.text"})), "x\n");
}

TEST_F(ConversationRowsTest, AnotherTemplateMakesAnotherStream) {
  const TableText table =
      lines(R"({"messages": [{"role": "user", "content": "a"}]})", {"messages"});
  EXPECT_EQ(text_of(table), "<user>a$");
  write("tokenizer/chat_template.jinja", "{{ messages[0].content }}!");
  EXPECT_EQ(text_of(table), "a!");
}

TEST_F(ConversationRowsTest, AColumnOfMessagesIsNotATextInSomeRows) {
  const std::string list = R"({"messages": [{"role": "user", "content": "a"}]})";
  const std::string text = R"({"messages": "a"})";
  for (const auto& [rows, problem] :
       {std::pair{list + "\n" + text, "line 2: column messages is a text"},
        std::pair{text + "\n" + list, "line 2: column messages is a list of messages"}}) {
    EXPECT_NE(refusal(lines(rows, {"messages"})).find(problem), std::string::npos)
        << refusal(lines(rows, {"messages"}));
  }
}

TEST_F(ConversationRowsTest, RowsAndWhatIsWrongWithThemAreNamed) {
  const std::string good = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_NE(refusal(lines(good + "\n{\"messages\": []}", {"messages"}))
                .find("rows.jsonl, line 2: column messages is an empty list"),
            std::string::npos);
  EXPECT_NE(refusal(lines(good + "\n{\"x\": 1}", {"messages"})).find("line 2: no column messages"),
            std::string::npos);
  write("tokenizer/chat_template.jinja", "{{ raise_exception('no users') }}");
  const std::string refused = refusal(messages({}));
  EXPECT_NE(refused.find("messages.arrow, row 1: chat template '"), std::string::npos) << refused;
  EXPECT_NE(refused.find("line 1: the template refuses the conversation: no users"),
            std::string::npos);
  fs::remove(folder_ / "tokenizer" / "chat_template.jinja");
  EXPECT_NE(refusal(messages({}), ErrorCode::configuration).find("has no chat template"),
            std::string::npos);
  EXPECT_NE(refusal(messages({"n"})).find("texts and lists of token ids make tokens"),
            std::string::npos);
  EXPECT_NE(refusal(messages({"one"})).find("of the type struct"), std::string::npos);
  // The tables of sentences have texts and numbers.
  try {
    (void)make_json_lines(messages({}).files, {"messages"});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("column messages is of the type list<struct"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::tasks
