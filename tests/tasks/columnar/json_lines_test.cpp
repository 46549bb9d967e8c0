// The texts of JSON lines: which line each token is of, and what is refused, with its line.

#include <gtest/gtest.h>

#include <filesystem>

#include "engine/data/corpus.h"
#include "tasks/columnar/table_corpus.h"
#include "tests/support/errors.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

class LinesFolder : public DataFolder {
 public:
  std::int64_t write_tokens(const std::string& lines, const std::string& column = "text",
                            TokenShard shard = {}, int workers = 1) const {
    TextReader reader{fs::path(write("in.jsonl", lines))};
    return write_row_tokens(reader, {{}, {column}}, ByteTokenizer(), workers,
                            {path("out.tokens"), shard});
  }
  [[nodiscard]] std::string texts_of(const std::string& lines, const std::string& column = "text",
                                     int workers = 1) const {
    write_tokens(lines, column, {}, workers);
    const Corpus corpus(path("out.tokens"), ByteTokenizer());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.tokens()));
    corpus.read(0, ids);
    return ByteTokenizer().decode(ids);
  }
  // Nothing is written.
  void expect_refusal(const std::string& lines, const std::string& part) const {
    SCOPED_TRACE(lines.substr(0, 80));
    fs::remove(path("out.tokens"));
    const std::string message = testing::error_of([&] { write_tokens(lines); }, ErrorCode::data);
    EXPECT_NE(message.find("text " + path("in.jsonl")), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const auto& entry : fs::directory_iterator(path(""))) {
      EXPECT_EQ(entry.path().filename(), "in.jsonl");
    }
  }
};

TEST(JsonLines, EachTextIsFollowedByItsEnd) {
  const LinesFolder folder;
  EXPECT_EQ(folder.texts_of("{\"text\": \"one\", \"n\": 1}\n{\"n\": [{}], \"text\": \"\"}\n"
                            "{\"text\": \"two\\nlines \\u00e9 \\u0000\"}\n"),
            std::string("one\n\ntwo\nlines \u00e9 \0\n", 20));
  // A mark at the beginning, ends as of Windows, and a last line without an end.
  EXPECT_EQ(folder.texts_of("\xEF\xBB\xBF{\"text\": \"one\"}\r\n{\"text\": \"two\"}"),
            "one\ntwo\n");
}

// As pandas and pyarrow do; they count.
TEST(JsonLines, BlankLinesArePassedOver) {
  const LinesFolder folder;
  EXPECT_EQ(folder.texts_of("\n{\"text\": \"one\"}\n\n \t\r\n{\"text\": \"two\"}\n\n"),
            "one\ntwo\n");
  folder.expect_refusal("\n{\"text\": \"one\"}\n \n{}\n", "line 4: no column text");
  folder.expect_refusal(" \n\n", "gives no tokens");
}

TEST(JsonLines, JsonOfOtherFormsNamesTheWayOut) {
  const LinesFolder folder;
  const std::string array = "one JSON array becomes JSON lines with: jq -c '.[]' FILE > rows.jsonl";
  folder.expect_refusal("[{\"text\": \"one\"}, {\"text\": \"two\"}]", array);
  folder.expect_refusal("[\n  {\"text\": \"one\"}\n]\n", array);
  folder.expect_refusal("{\n  \"text\": \"one\"\n}\n", "jq -c . FILE > rows.jsonl");
}

TEST(JsonLines, AColumnIsAKeyOrAPath) {
  const LinesFolder folder;
  const std::string lines = "{\"a\": {\"b\": \"path\", \"c.d\": \"last\"}, \"a.b.c\": \"key\"}\n";
  EXPECT_EQ(folder.texts_of(lines, "a.b"), "path\n");
  EXPECT_EQ(folder.texts_of(lines, "a.b.c"), "key\n");
  EXPECT_EQ(folder.texts_of(lines, "a.c.d"), "last\n");
}

TEST(JsonLines, LinesOfAnyLengthOnAnyNumberOfThreads) {
  const LinesFolder folder;
  std::string lines, texts;
  for (int i = 0; i < 30; ++i) {
    const std::string text(static_cast<std::size_t>(i * i * i * 60),
                           static_cast<char>('a' + i % 26));
    lines += "{\"text\": \"" + text + "\"}\n";
    texts += text + "\n";
  }
  EXPECT_TRUE(folder.texts_of(lines) == texts);
  EXPECT_TRUE(folder.texts_of(lines, "text", 3) == texts);
}

TEST(JsonLines, BadLinesAreNamed) {
  const LinesFolder folder;
  const std::string good = "{\"text\": \"good\"}\n";
  folder.expect_refusal(good + "{\"text\": \"cut o", "line 2': not valid JSON at byte 16");
  folder.expect_refusal(good + good + "{\"text\": \"\xc3\"}\n" + good, "line 3': not valid JSON");
  folder.expect_refusal(good + std::string("{\"text\": \"\0\"}\n", 14), "line 2'");
  folder.expect_refusal("{\"a\": 1, \"txt\": \"\"}", "line 1: no column text; it has a, txt");
  folder.expect_refusal("{}", "line 1: no column text; it has none");
  folder.expect_refusal("{\"text\": null}", "line 1: column text is null; leave such rows out");
  folder.expect_refusal(good + "{\"text\": null}", "line 2: column text is null; leave such rows");
  folder.expect_refusal("{\"text\": [true]}", "line 1: a message is boolean, not an object");
  folder.expect_refusal("{\"text\": \"a\", \"text\": \"b\"}", "line 1': key \"text\" twice");
  folder.expect_refusal("\"text\"\n", "line 1: a JSON string, and not an object");
  folder.expect_refusal(std::string(1000, '['), "line 1'");
  folder.expect_refusal("", "gives no tokens");
}

// Python's json keeps them; the file is not damaged.
TEST(JsonLines, HalvesOfSurrogatePairsAreNamed) {
  const LinesFolder folder;
  const std::string problem =
      " is half of a pair of surrogates, not a character; write the "
      "whole one, or \\ufffd";
  const auto line = [](const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; };
  const std::string good = line(R"(\ud83d\ude00 \\ud800 \ufffd)");
  EXPECT_EQ(folder.texts_of(good), "\U0001f600 \\ud800 \ufffd\n");
  for (const char* escape : {R"(\ud800)", R"(\uDFFF)", R"(\udc00)"}) {
    for (const char* rest : {"", "a", R"(\u0041)", R"(\n)", R"(\ud83d\ude00)"}) {
      folder.expect_refusal(good + line(std::string(R"(\\ )") + escape + rest),
                            std::string("line 2': the escape ") + escape + " at byte 14" + problem);
    }
  }
  // The first problem counts.
  folder.expect_refusal(line("\xff \\ud800"), "line 1': not valid JSON");
  folder.expect_refusal("{text: \"\\ud800\"}", "line 1': not valid JSON");
}

TEST(JsonLines, ALineHasABound) {
  const LinesFolder folder;
  folder.expect_refusal(std::string(std::size_t{66} << 20, ' '),
                        "line 1: more than 67108864 bytes");
}

TEST(JsonLines, AShardMayBeEmpty) {
  const LinesFolder folder;
  EXPECT_EQ(folder.write_tokens("", "text", {2, 3}), 0);
  EXPECT_EQ(fs::file_size(folder.path("out.tokens")), 256U);
}

}  // namespace
}  // namespace tessera::tasks
