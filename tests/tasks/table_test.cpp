// Tables: valid rows, and the errors for invalid ones.
#include "tasks/table.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tasks/columnar/table_files.h"
#include "tasks/table_rows.h"
#include "tests/support/errors.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

using Rows = std::vector<std::vector<std::string>>;

class TextTable : public DataFolder {
 public:
  // The rows, or the error, without the folder's name.
  [[nodiscard]] Rows rows(const std::string& name, const std::string& content,
                          const TableOptions& options) const {
    const Table table({write(name, content)}, options);
    Rows all;
    for (std::int64_t i = 0; i < table.rows(); ++i) all.push_back(table.read(i));
    return all;
  }
  [[nodiscard]] std::string refusal(const std::string& name, const std::string& content,
                                    const TableOptions& options,
                                    const Table::Check& check = {}) const {
    std::string text = testing::error_of(
        [&] { (void)Table({write(name, content)}, options, check); }, ErrorCode::data);
    const std::string folder = path("");
    for (std::size_t at = text.find(folder); at != std::string::npos; at = text.find(folder)) {
      text.erase(at, folder.size());
    }
    return text;
  }
};

TEST(Table, TabsWithoutQuotesAsInTheStsBenchmark) {
  const TextTable file;
  const std::string text =
      "news\tM\t2012\t1\t5.000\tA \"plane\" is\tAn, air\nnews\tM\t2012\t4\t3.8\tx\ty\tmore\tmore\n";
  EXPECT_EQ(file.rows("sts.csv", text, {.columns = {"6", "7", "5"}}),
            (Rows{{"A \"plane\" is", "An, air", "5.000"}, {"x", "y", "3.8"}}));
}

TEST(Table, QuotesAndAHeader) {
  const TextTable file;
  const std::string text =
      "label,text,other\r\n1,\"a, \"\"b\"\"\",x\r\n2,\"two\nlines\",5\" pipe\r\n3,,\r\n";
  EXPECT_EQ(file.rows("a.csv", text, {.columns = {"text", "label"}}),
            (Rows{{"a, \"b\"", "1"}, {"two\nlines", "2"}, {"", "3"}}));
  const Table table({file.path("a.csv")}, {.columns = {"text"}});
  EXPECT_EQ(table.place(2), file.path("a.csv") + ":5");
}

TEST(Table, AHeaderCanBeSkipped) {
  const TextTable file;
  EXPECT_EQ(file.rows("a.tsv", "x\ty\n1\t2", {.columns = {"2"}, .header = true}), (Rows{{"2"}}));
  EXPECT_EQ(file.rows("b.tsv", "\xEF\xBB\xBFx\ty\n1\t2", {.columns = {"1"}}), (Rows{{"x"}, {"1"}}));
}

TEST(Table, JsonLinesHaveKeys) {
  const TextTable file;
  const std::string text =
      "{\"a\": \"x\\n\\u00e9\", \"n\": 2.5, \"v\": [1, 2]}\n{\"n\": 3, \"a\": \"y\", \"v\": []}\n";
  EXPECT_EQ(file.rows("a.jsonl", text, {.columns = {"a", "n", "v"}}),
            (Rows{{"x\n\u00e9", "2.5", "[1,2]"}, {"y", "3", "[]"}}));
}

TEST(Table, LinesOfText) {
  const TextTable file;
  EXPECT_EQ(file.rows("a.txt", "one, \"two\nthree\tfour", {.columns = {"1"}}),
            (Rows{{"one, \"two"}, {"three\tfour"}}));
}

TEST(Table, RowsLongerThanAWindowAndManyOfThem) {
  const TextTable file;
  std::string text;
  Rows expected;
  for (int i = 0; i < 4000; ++i) {
    const std::string word(static_cast<std::size_t>(i % 1500), static_cast<char>('a' + i % 26));
    text += "\"" + word + "\n\"," + std::to_string(i) + "\n";
    expected.push_back({word + "\n", std::to_string(i)});
  }
  text += "\"" + std::string(3'000'000, 'z') + "\",end\n";
  expected.push_back({std::string(3'000'000, 'z'), "end"});
  EXPECT_EQ(file.rows("a.csv", text, {.columns = {"1", "2"}}), expected);
}

TEST(Table, SeveralFilesFollowEachOther) {
  const TextTable file;
  const std::vector<std::string> b = {file.write("b1.tsv", "1\tx\n2\ty\n")};
  file.write("a.tsv", "3\tz");
  const Table table({b.front(), file.path("a*.tsv")}, {.columns = {"1"}});
  ASSERT_EQ(table.rows(), 3);
  EXPECT_EQ(table.read(2), std::vector<std::string>{"3"});
  EXPECT_EQ(table.place(2), file.path("a.tsv") + ":1");
  EXPECT_EQ(table.bytes(1), 4);
  EXPECT_NE(table.fingerprint(), Table(b, {.columns = {"1"}}).fingerprint());
  EXPECT_NE(Table(b, {.columns = {"2"}}).fingerprint(), Table(b, {.columns = {"1"}}).fingerprint());
  (void)testing::error_of([&] { (void)expand_files({file.path("none*")}); }, ErrorCode::data);
}

TEST(Table, BlankLinesBetweenJsonLinesArePassedOver) {
  const DataFolder folder;
  const Table table({folder.write("a.jsonl", "\n{\"a\": 1}\n\n \t\n{\"a\": 2}\n\n")},
                    {.columns = {"a"}});
  ASSERT_EQ(table.rows(), 2);
  EXPECT_EQ(table.read(0).front(), "1");
  EXPECT_EQ(table.read(1).front(), "2");
  EXPECT_EQ(table.place(1), folder.path("a.jsonl") + ":5");
}

TEST(Table, ErrorsHaveFileAndLine) {
  const TextTable file;
  const TableOptions two{.columns = {"1", "2"}};
  EXPECT_EQ(file.refusal("a.tsv", "a\tb\nc\n", two),
            "a.tsv:2: 1 columns, but column 2 is required");
  EXPECT_EQ(file.refusal("a.tsv", "a\tb\n\nc\td\n", two), "a.tsv:2: an empty line");
  EXPECT_EQ(file.refusal("a.tsv", "a\tb\nc\td\xC3(\n", two),
            "a.tsv:2: byte 4 of the line is not UTF-8; convert the file");
  EXPECT_EQ(file.refusal("a.csv", "t,n\n1,2\n1,2,3\n", {.columns = {"t"}}),
            "a.csv:3: 3 columns, but the header has 2");
  EXPECT_EQ(file.refusal("a.csv", "t,n\n1,2\n", {.columns = {"text"}}),
            "a.csv:1: the header has no column text; it has t, n");
  EXPECT_EQ(file.refusal("a.csv", "1,2\n3,\"4\n", two), "a.csv:2: a quote is not closed");
  EXPECT_EQ(file.refusal("a.csv", "1,2\n3,\"4\"x\n", two),
            "a.csv:2: text behind a closing quote; a quote in a quoted text is written twice");
  EXPECT_EQ(file.refusal("a.jsonl", "{\"a\": 1}\n{\"b\": 1}\n", {.columns = {"a"}}),
            "a.jsonl:2: no a");
  EXPECT_EQ(file.refusal("a.jsonl", "{\"a\": 1}\n[1]\n", {.columns = {"a"}}),
            "a.jsonl:2: a JSON array, and not an object; each line of JSON lines has one; a file "
            "that is one array becomes JSON lines with: jq -c '.[]' FILE > rows.jsonl");
  EXPECT_EQ(file.refusal("a.jsonl", "\n{\"a\": 1}\n  \n1\n", {.columns = {"a"}}),
            "a.jsonl:4: not a JSON object");
  EXPECT_EQ(file.refusal("a.jsonl", "{\"a\": 1}\n{\"a\": \"\\ud800\"}\n", {.columns = {"a"}}),
            "a.jsonl:2: the escape \\ud800 at byte 8 is half of a pair of surrogates, not a "
            "character; write the whole one, or \\ufffd");
  EXPECT_EQ(file.refusal("a.tsv", "", two), "data file a.tsv has no row");
  EXPECT_EQ(file.refusal("a.tsv", "a\t0\n", {.columns = {"0"}}),
            "data file a.tsv: columns are counted from 1, not 0");
  const Table::Check check = [](const std::vector<std::string>& columns) {
    return columns[0] == "bad" ? std::string("a bad one") : std::string();
  };
  EXPECT_EQ(file.refusal("a.tsv", "good\tb\nbad\tb\n", two, check), "a.tsv:2: a bad one");
}

TEST(Table, AFileThatBecameShorterIsAnError) {
  const TextTable file;
  const Table table({file.write("a.tsv", "1\t2\n3\t4\n")}, {.columns = {"1"}});
  std::filesystem::resize_file(file.path("a.tsv"), 5);
  EXPECT_EQ(table.read(0), std::vector<std::string>{"1"});
  (void)testing::error_of([&] { (void)table.read(1); }, ErrorCode::data);
}

TEST(Table, Utf8FollowsRfc3629) {
  for (const char* good : {"", "plain ascii text of some length", "\u00e9\u20ac\U0001F600",
                           "\xED\x9F\xBF", "\xEE\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_FALSE(malformed_utf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF0\x80\x80\xAF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF", "\xC3"}) {
    EXPECT_EQ(malformed_utf8("0123456789" + std::string(bad)), 10u);
  }
}

}  // namespace
}  // namespace tessera::tasks
