// The samples of tar archives are rows, in every format of tar; what is damaged is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tasks/columnar/table_corpus.h"
#include "tasks/table.h"
#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

using nlohmann::ordered_json;

std::string archive(const std::string& name) {
  return columnar_fixture("archives/" + name);
}

std::vector<ordered_json> rows_of(const std::string& path) {
  std::vector<ordered_json> rows;
  TextReader reader(path);
  for_each_json_row(TableFileKind::tar, reader,
                    [&](const ordered_json& row, const std::string&) { rows.push_back(row); });
  return rows;
}

std::string refusal(const std::string& path) {
  return testing::error_of([&] { (void)rows_of(path); }, ErrorCode::data);
}

// A header of POSIX, and the contents.
std::string member(const std::string& name, const std::string& contents, char type = '0') {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  block.replace(124, 11, fmt::format("{:011o}", contents.size()));
  block[156] = type;
  block.replace(257, 8, std::string("ustar\000", 6) + "00");
  block.replace(148, 8, 8, ' ');
  int sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  block.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
  return block + contents + std::string((512 - contents.size() % 512) % 512, '\0');
}
const std::string end_of_archive(1024, '\0');

TEST(TarSamples, FilesOfOneKeyAreARow) {
  for (const char* const name : {"ustar.tar", "gnu.tar", "pax.tar", "pax.tar.gz", "pax.tar.zst"}) {
    const std::vector<ordered_json> rows = rows_of(archive(name));
    const bool has_longest = std::string(name) != "ustar.tar";
    ASSERT_EQ(rows.size(), has_longest ? 8U : 7U) << name;
    EXPECT_EQ(rows[3].dump(), R"({"__key__":"data/0003","txt":"text 3 é","json":)"
                              R"({"label":3,"text":"of the json","meta":{"deep":[3]}},)"
                              R"("text":"text 3 é","label":3,"meta":{"deep":[3]}})")
        << name;
    EXPECT_EQ(rows[4]["__key__"], "long/" + std::string(80, 'a') + "/" + std::string(60, 'b'));
    EXPECT_EQ(rows[5].dump(), R"({"__key__":"ééé/x","en.text":"several dots"})") << name;
    EXPECT_EQ(rows[6]["txt"], "") << name;
    if (has_longest) {
      EXPECT_EQ(rows[7]["__key__"], std::string(300, 'c')) << name;
    }
  }
}

// GNU tar's own files.
TEST(TarSamples, ContentsThatAreElsewhereAreRefused) {
  EXPECT_NE(refusal(archive("hardlink.tar")).find("its .txt is a hard link to '0.txt'"),
            std::string::npos);
  for (const char* const name : {"sparse-gnu.tar", "sparse-1.0.tar", "sparse-0.0.tar"}) {
    const std::string text = refusal(archive(name));
    EXPECT_NE(text.find("sample 2: its .txt is a sparse file"), std::string::npos) << text;
  }
}

TEST(TarSamples, ArchivesFollowEachOther) {
  const DataFolder folder;
  const std::string joined =
      folder.write("joined.tar", bytes_of(archive("ustar.tar")) + bytes_of(archive("gnu.tar")));
  EXPECT_EQ(rows_of(joined).size(), 7U + 8U);
  EXPECT_NE(
      refusal(folder.write("more.tar", bytes_of(archive("ustar.tar")) + "more")).find("truncated"),
      std::string::npos);
}

TEST(TarSamples, AreFoundByTheirBytesOrTheirName) {
  const DataFolder folder;
  const auto kind = [&](const std::string& name, const std::string& bytes) {
    return find_table_files({folder.write(name, bytes)}).value().front().kind;
  };
  EXPECT_EQ(kind("a", bytes_of(archive("pax.tar.gz"))), TableFileKind::tar);
  EXPECT_EQ(kind("B.TAR.GZ", bytes_of(archive("pax.tar.gz"))), TableFileKind::tar);
  EXPECT_EQ(kind("c.tzst", bytes_of(archive("pax.tar.zst"))), TableFileKind::tar);
  EXPECT_EQ(kind("d", bytes_of(archive("gnu.tar"))), TableFileKind::tar);
}

TEST(TarSamples, BecomeTokens) {
  const DataFolder folder;
  folder.write("b.tar", member("1.txt", "second") + member("2.json", R"({"text": "third"})"));
  folder.write("a.tar", member("1.txt", "first") + member("1.jpg", "\xff\xd8"));
  const auto tokens = [&](const std::vector<std::string>& columns) {
    const auto files = find_table_files({folder.path("*.tar")});
    const ByteTokenizer bytes;
    (void)write_table_tokens({files.value(), columns, ""}, bytes, 1, {folder.path("out.bin"), {}});
    const Corpus corpus(folder.path("out.bin"), bytes);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.tokens()));
    corpus.read(0, ids);
    return bytes.decode(ids);
  };
  EXPECT_EQ(tokens({}), "first\nsecond\nthird\n");
  EXPECT_EQ(tokens({"text"}), "first\nsecond\nthird\n");
  EXPECT_NE(
      testing::error_of([&] { (void)tokens({"jpg"}); }, ErrorCode::data).find("a.tar, sample 1"),
      std::string::npos);
}

TEST(TarSamples, DamageIsRefused) {
  const DataFolder folder;
  const std::string whole = bytes_of(archive("gnu.tar"));
  for (std::size_t length = 700; length + 10240 < whole.size(); length += 300) {
    if (length % 512 == 0) continue;
    const std::string text = refusal(folder.write("cut.tar", whole.substr(0, length)));
    EXPECT_NE(text.find("truncated"), std::string::npos) << length << text;
  }
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string changed = whole;
    for (int i = 0; i < 3; ++i) changed[random() % 12000] = static_cast<char>(random());
    try {
      (void)rows_of(folder.write("changed.tar", changed));
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ErrorCode::data) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(refused, 100);  // the others changed contents and zeros
}

TEST(TarSamples, WrongSamplesAreRefused) {
  const DataFolder folder;
  const auto refuse = [&](const std::string& bytes, const std::string& message) {
    const std::string text = refusal(folder.write("a.tar", bytes));
    EXPECT_NE(text.find(message), std::string::npos) << text;
  };
  refuse(member("a.txt", "x") + member("a.TXT", "y") + end_of_archive,
         "sample a: two files end in .txt");
  refuse(member("a.json", "{\"x\": 1") + end_of_archive, "sample a, .json");
  refuse(member("a.json", "{\"x\": 1, \"x\": 2}") + end_of_archive, "sample a, .json");
  refuse(member("README", "x") + end_of_archive, "has no sample");
  refuse("a plain text" + std::string(600, ' '), "or this is not a tar archive");
  refuse(member("x", "12 path=a.tx", 'x') + member("a.txt", "x"), "a pax header is damaged");
  std::string huge = member("a.txt", "x");
  huge.replace(124, 12, std::string("\x80\0\0\0\x7f", 5) + std::string(7, '\xff'));
  EXPECT_NE(refusal(folder.write("a.tar", huge)).find("damaged"), std::string::npos);
  // Without the blocks of zeros, as some writers leave it.
  EXPECT_EQ(rows_of(folder.write("a.tar", member("a.txt", "x"))).size(), 1U);
}

TEST(TarSamples, DoNotMixWithOtherFiles) {
  const DataFolder folder;
  folder.write("a.tar", member("a.txt", "x"));
  folder.write("b.arrow", bytes_of(columnar_fixture("types.arrow")));
  EXPECT_NE(testing::error_of([&] { (void)find_table_files({folder.path("*")}); }, ErrorCode::data)
                .find("one is a tar archive and one is not"),
            std::string::npos);
}

TEST(TarSamples, AreRowsOfATable) {
  const DataFolder folder;
  const std::string path = folder.write(
      "a.tar", member("a.first.txt", "one") + member("a.json", R"({"second": "two"})") +
                   member("b.first.txt", "three") + member("b.json", R"({"second": "four"})") +
                   end_of_archive);
  const Table table({path}, {.columns = {"first.txt", "second"}});
  ASSERT_EQ(table.rows(), 2);
  EXPECT_EQ(table.read(1), (std::vector<std::string>{"three", "four"}));
  EXPECT_NE(testing::error_of([&] { Table({path}, {.columns = {"third"}}); }, ErrorCode::data)
                .find("no column third; it has __key__, first.txt, json, second"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::tasks
