// Texts and token ids of Arrow files as a stream of tokens, and the file that keeps it.
#include "tasks/columnar/table_corpus.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "tasks/columnar/derived_file.h"
#include "tasks/columnar/table_json.h"
#include "tasks/table.h"
#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

// A folder with fixtures.
class FixturesFolder : public DataFolder {
 public:
  void add(const std::string& fixture, const std::string& name) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    fs::copy_file(columnar_fixture(fixture), path(name));
  }
  [[nodiscard]] TableText table(const std::string& column) const {
    TableText text{find_table_files({path("")}).value()};
    if (!column.empty()) text.columns = {column};
    return text;
  }
  [[nodiscard]] std::vector<std::string> derived() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(""))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('_')) names.push_back(name);
    }
    return names;
  }
};

std::vector<std::int32_t> tokens_of(const Corpus& corpus) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.tokens()));
  corpus.read(0, ids);
  return ids;
}

// Bytes, with an id of its own behind each text.
class EndingTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "ending"; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 300; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 77; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    return ByteTokenizer().encode(text);
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override { return 299; }
  [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override { return {}; }
};

TEST(TableCorpus, TextsInTheOrderOfFilesWithTheirEnds) {
  const FixturesFolder folder;
  folder.add("helper-rows.arrows", "b.arrow");
  folder.add("helper-rows.arrows", "lang=de/a.arrow");
  const std::string once = "one\ntwo\nthree\n";
  const ByteTokenizer bytes;
  const auto corpus = open_table_corpus(folder.table("text"), bytes);
  EXPECT_EQ(bytes.decode(tokens_of(*corpus)), once + once);
  const auto ending = tokens_of(*open_table_corpus(folder.table(""), EndingTokenizer(), 3));
  ASSERT_EQ(ending.size(), 2 * 14U);
  EXPECT_EQ(ending[3], 299);
  EXPECT_EQ(ending[13], 299);
  EXPECT_EQ(folder.derived().size(), 2U);
}

TEST(TableCorpus, TheStreamIsMadeOnceAndAgainWhenAFileChanges) {
  const FixturesFolder folder;
  folder.add("helper-rows.arrows", "a.arrow");
  const ByteTokenizer bytes;
  (void)open_table_corpus(folder.table("text"), bytes);
  ASSERT_EQ(folder.derived().size(), 1U);
  const std::string first = folder.derived().front();
  const auto written = fs::last_write_time(folder.path(first));
  folder.write(first + ".partial-01234567", "left by a process that was killed");
  (void)open_table_corpus(folder.table("text"), bytes);
  EXPECT_EQ(fs::last_write_time(folder.path(first)), written);
  fs::last_write_time(folder.path("a.arrow"), written + std::chrono::hours(1));
  (void)open_table_corpus(folder.table("text"), bytes);
  ASSERT_EQ(folder.derived().size(), 1U);
  EXPECT_NE(folder.derived().front(), first);
}

std::string refusal_of(const FixturesFolder& folder, const std::string& column,
                       const Tokenizer& tokenizer) {
  return testing::error_of([&] { (void)open_table_corpus(folder.table(column), tokenizer); },
                           ErrorCode::data);
}

TEST(TableCorpus, TokenIdsOfAnUnknownTokenizerAndOfAKnownOne) {
  const FixturesFolder folder;
  folder.add("rows.arrow", "a.arrow");
  const auto corpus = open_table_corpus(folder.table("ids"), ByteTokenizer());
  EXPECT_EQ(tokens_of(*corpus), (std::vector<std::int32_t>{1, 2, 40000, 3, 5}));
  EXPECT_EQ(corpus->vocabulary_size(), 0);
  corpus->require_vocabulary(50000, true);
  const std::string text = refusal_of(folder, "ids", EndingTokenizer());
  EXPECT_NE(text.find("a.arrow, row 3: token 40000 of column ids is outside a vocabulary of 300"),
            std::string::npos)
      << text;
  EXPECT_NE(refusal_of(folder, "wrong", ByteTokenizer()).find("row 3: token -1"),
            std::string::npos);
  EXPECT_EQ(folder.derived().size(), 1U);  // what was refused leaves nothing
}

// Files of other columns, as after a change of a schema.
TEST(TableCorpus, TokenIdsOfJsonLines) {
  const DataFolder folder;
  const auto ids = [&](const std::string& lines, const Tokenizer& tokenizer) {
    const TableText table{json_lines({folder.write("ids.jsonl", lines)}), {"meta.ids"}};
    return tokens_of(*open_table_corpus(table, tokenizer));
  };
  const std::string rows = R"({"meta": {"ids": [5, 60000]}})"
                           "\n"
                           R"({"meta": {"ids": []}})"
                           "\n"
                           R"({"meta": {"ids": [298]}})";
  EXPECT_EQ(ids(rows, ByteTokenizer()), (std::vector<std::int32_t>{5, 60000, 298}));
  const auto refuse = [&](const std::string& lines, const std::string& message) {
    const std::string text =
        testing::error_of([&] { (void)ids(lines, EndingTokenizer()); }, ErrorCode::data);
    EXPECT_NE(text.find(message), std::string::npos) << text;
  };
  refuse(rows, "line 1: 60000 in column meta.ids is not a token id of a vocabulary of 300");
  refuse(R"({"meta": {"ids": [1.5]}})", "1.5 in column meta.ids is not a token id");
  refuse(R"({"meta": {"ids": [-1]}})", "-1 in column meta.ids");
  refuse(R"({"meta": {"ids": [1]}})"
         "\n"
         R"({"meta": {"ids": "text"}})",
         "has texts, and the rows before have token ids");
  refuse(R"({"meta": {"id": [1]}})", "no column meta.ids; it has meta");
}

TEST(TableCorpus, AFileIsNotReadByAnotherColumnThanTheOthers) {
  const FixturesFolder folder;
  folder.add("helper-rows.arrows", "a.arrow");  // text
  folder.add("ids64.arrow", "b.arrow");         // ids
  EXPECT_NE(refusal_of(folder, "", ByteTokenizer())
                .find("b.arrow: its tokens would come from column ids, and those of the files "
                      "before come from text; name the column in columns"),
            std::string::npos);
}

TEST(TableCorpus, AnIdOfMoreThan32BitsIsRefusedWhateverItsLowerBits) {
  const FixturesFolder folder;
  folder.add("ids64.arrow", "a.arrow");
  EXPECT_NE(refusal_of(folder, "ids", ByteTokenizer()).find("row 2: token 4294967301 of"),
            std::string::npos);
}

TEST(TableCorpus, ColumnsThatMakeNoTokensAreRefused) {
  const FixturesFolder folder;
  folder.add("types.arrow", "lang=de/a.arrow");
  const ByteTokenizer bytes;
  EXPECT_NE(refusal_of(folder, "word", bytes).find("a.arrow, row 4: column word is null"),
            std::string::npos);
  EXPECT_NE(refusal_of(folder, "f64", bytes).find("column f64 is of the type float64"),
            std::string::npos);
  EXPECT_NE(refusal_of(folder, "lang", bytes).find("column lang is a folder's name"),
            std::string::npos);
  EXPECT_NE(refusal_of(folder, "", bytes)
                .find("name the column of texts, token ids or messages in columns"),
            std::string::npos);
}

TEST(TableCorpus, APatternPassesOverTheFileThatItsFirstRunMade) {
  const FixturesFolder folder;
  folder.add("helper-rows.arrows", "a.arrow");
  for (int run = 0; run < 2; ++run) {
    const TableText table{find_table_files({folder.path("*")}).value(), {"text"}};
    EXPECT_EQ(open_table_corpus(table, ByteTokenizer())->tokens(), 14);
    EXPECT_EQ(folder.derived().size(), 1U);
  }
}

TEST(TableCorpus, ANameThatBeginsAsTheDerivedFilesAndEndsIsKept) {
  const FixturesFolder folder;
  folder.add("helper-rows.arrows", "a.arrow");
  (void)open_table_corpus(folder.table("text"), ByteTokenizer());
  const std::string made = folder.derived().front();
  const std::string start = made.substr(0, made.find('.', made.find(".arrow.") + 7) + 1);
  folder.write(start, "of the user");
  fs::last_write_time(folder.path("a.arrow"), fs::file_time_type::clock::now());
  (void)open_table_corpus(folder.table("text"), ByteTokenizer());
  EXPECT_TRUE(fs::exists(folder.path(start)));
}

TEST(TableCorpus, APartitionThatGetsAnotherNameGivesItsValue) {
  const FixturesFolder folder;
  folder.add("rows.arrow", "lang=de/a.arrow");
  const TableOptions options{.columns = {"first", "lang"}};
  EXPECT_EQ(Table({folder.path("")}, options).read(0)[1], "de");
  fs::rename(folder.path("lang=de"), folder.path("lang=fr"));
  EXPECT_EQ(Table({folder.path("")}, options).read(0)[1], "fr");
}

TEST(TableCorpus, RelativePathsNameTheSameDerivedFile) {
  const FixturesFolder folder;
  folder.add("rows.arrow", "a.arrow");
  folder.add("rows.arrow", "more/b.arrow");
  const auto derived = [](const std::string& first, const std::string& second) {
    const std::vector<TableFile> files = {{first, TableFileKind::arrow, {}},
                                          {second, TableFileKind::arrow, {}}};
    return DerivedFile(files, 7, ".x", [](const fs::path& path) { std::ofstream(path) << "x"; })
        .path()
        .filename();
  };
  const std::string second = folder.path("more/b.arrow");
  const std::string relative = fs::relative(folder.path("a.arrow")).string();
  EXPECT_EQ(derived(relative, second), derived(folder.path("a.arrow"), second));
}

TEST(TableCorpus, RowsBesideTheDataHaveTheModeOfTheUmask) {
  const FixturesFolder folder;
  folder.add("rows.arrow", "a.arrow");
  const mode_t before = ::umask(077);
  const Table table({folder.path("")}, {.columns = {"first", "second"}});
  ::umask(before);
  ASSERT_EQ(folder.derived().size(), 1U);
  EXPECT_EQ(fs::status(folder.path(folder.derived().front())).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST(TableCorpus, RowsOfAFolderThatCannotBeWrittenAreClosedToOthers) {
  const FixturesFolder folder;
  folder.add("rows.arrow", "a.arrow");
  const std::vector<TableFile> files = find_table_files({folder.path("")}).value();
  fs::permissions(folder.path(""), fs::perms(0555));
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  fs::path made;
  fs::perms reached = fs::perms::all;
  {
    const auto rows = make_json_lines(files, {"first"});
    made = rows->path();
    reached = fs::status(made.parent_path()).permissions();
    EXPECT_EQ(bytes_of(made.string()).find("{\"first\":\"a cat\"}\n"), 0U);
  }
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(folder.path(""), fs::perms(0755));
  EXPECT_EQ(reached, fs::perms::owner_all);
  EXPECT_FALSE(fs::exists(made.parent_path()));
}

TEST(TableCorpus, RowsOfPairsComeFromFilesAndFolders) {
  const FixturesFolder folder;
  folder.add("rows.arrow", "lang=de/a.arrow");
  folder.add("rows.arrow", "lang=fr/a.arrow");
  const std::vector<std::string> columns = {"first", "2", "score", "kind", "lang"};
  const Table table({folder.path("")}, {.columns = columns});
  ASSERT_EQ(table.rows(), 8);
  EXPECT_EQ(table.read(0), (std::vector<std::string>{"a cat", "a kitten", "4.5", "yes", "de"}));
  EXPECT_EQ(table.read(7), (std::vector<std::string>{"é", "\\n", "0.0", "no", "fr"}));
  EXPECT_EQ(Table({folder.path("")}, {.columns = columns}).fingerprint(), table.fingerprint());
  const std::string text = testing::error_of(
      [&] { Table({folder.path("")}, {.columns = {"first"}, .format = TableFormat::csv}); },
      ErrorCode::data);
  EXPECT_NE(text.find("leave format and header out"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::tasks
