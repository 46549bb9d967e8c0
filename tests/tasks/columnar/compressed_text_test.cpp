// Compressed texts are read as the texts, whatever the sizes of the reads; what is damaged, cut
// short or compressed in another way is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "engine/data/corpus.h"
#include "engine/data/text_reader.h"
#include "tasks/table.h"
#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

std::string whole_text(const std::string& path, std::int64_t bytes) {
  TextReader reader(path);
  std::string text;
  while (reader.append(text, bytes)) {
  }
  return text;
}

std::string all_lines() {
  std::string lines;
  for (int n = 0; n < 3000; ++n) {
    lines += "{\"text\": \"row " + std::to_string(n) + " ";
    for (int i = 0; i < n % 5; ++i) lines += "é";
    lines += "\"}\n";
  }
  return lines;
}

class CompressedText : public ::testing::TestWithParam<std::string> {
 public:
  [[nodiscard]] std::string path() const { return columnar_fixture("archives/" + GetParam()); }
  static std::string refusal(const std::string& path) {
    return testing::error_of([&] { (void)whole_text(path, 1 << 20); }, ErrorCode::data);
  }
};

TEST_P(CompressedText, IsReadInPartsOfEverySize) {
  const std::string expected = all_lines();
  for (const std::int64_t bytes : {1, 7, 4096, 1 << 20}) {
    EXPECT_EQ(whole_text(path(), bytes), expected) << bytes;
  }
}

TEST_P(CompressedText, CutAnywhereItIsRefusedButBetweenItsParts) {
  const std::string bytes = bytes_of(path());
  const std::string expected = all_lines();
  const DataFolder folder;
  int whole = 0;
  for (std::size_t length = 7; length < bytes.size(); length += 97) {
    const std::string cut = folder.write(GetParam(), bytes.substr(0, length));
    try {
      const std::string text = whole_text(cut, 1 << 20);
      EXPECT_EQ(text, expected.substr(0, text.size()));
      ++whole;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find(GetParam()), std::string::npos) << error.what();
    }
  }
  EXPECT_LE(whole, 9);  // within the zeros at the end of one file
}

TEST_P(CompressedText, ChangedBytesAreFoundByItsChecksums) {
  const std::string bytes = bytes_of(path());
  const std::string expected = all_lines();
  const DataFolder folder;
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::string changed = bytes;
    changed[10 + random() % (bytes.size() - 710)] ^= static_cast<char>(1 << (random() % 8));
    try {
      EXPECT_EQ(whole_text(folder.write(GetParam(), changed), 1 << 20), expected);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      ++refused;
    }
  }
  EXPECT_GE(refused, 55);  // a few bits of headers stand for nothing
}

std::string case_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param.ends_with(".gz") ? "gzip" : "zstd";
}
INSTANTIATE_TEST_SUITE_P(Files, CompressedText,
                         ::testing::Values("lines.jsonl.gz", "lines.jsonl.zst"), case_name);

TEST(CompressedTexts, OtherCompressionsAndWrongNamesAreRefused) {
  const DataFolder folder;
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder.write("a.xz",
                    "\xfd"
                    "7zXZ\0..."s),
       "compressed by xz, which is not read; decompress it (xz -d)"},
      {folder.write("a.txt", "BZh91AY&SY"), "by bzip2"},
      {folder.write("a.Z", "\x1f\x9d..."), "by compress"},
      {folder.write("a.lz4", "\x04\x22\x4d\x18..."), "by LZ4"},
      {folder.write("a.docx", "PK\x03\x04..."), "by zip"},
      {folder.write("a.gz", "plain text"), "does not begin as the compressed file"},
      {folder.write("a.tgz", "plain text"), "does not begin as the compressed file"},
      {folder.write("b.gz", "\x1f\x8b\x08 and no more"), "gzip data is damaged"},
      {folder.write("b.zst", "\x28\xb5\x2f\xfd and no more"), "Zstandard data is damaged"}};
  for (const auto& [path, message] : cases) {
    const std::string text = CompressedText::refusal(path);
    EXPECT_NE(text.find(message), std::string::npos) << text;
  }
  // A frame that readers skip, as parallel compressors write it first.
  const std::string skipped("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12);
  EXPECT_EQ(
      whole_text(
          folder.write("p.zst", skipped + bytes_of(columnar_fixture("archives/lines.jsonl.zst"))),
          1 << 20),
      all_lines());
  EXPECT_EQ(whole_text(folder.write("BZh.txt", "BZhang said"), 9), "BZhang said");
}

TEST(CompressedTexts, OtherFilesAreNoTexts) {
  const DataFolder folder;
  const auto refuse = [&](const std::string& path, const std::string& message) {
    const std::string text =
        testing::error_of([&] { const Corpus corpus(path, ByteTokenizer()); }, ErrorCode::data);
    EXPECT_NE(text.find(message), std::string::npos) << text;
  };
  refuse(folder.write("a", "PAR1..."), "holds Parquet, and not a text; give it as a file");
  refuse(columnar_fixture("archives/pax.tar.gz"), "holds a tar archive, compressed, and not a");
  refuse(folder.write("b", "Obj\x01..."), "holds Avro");
  refuse(folder.write("part.orc", "ORC..."), "holds ORC");
  EXPECT_EQ(Corpus(folder.write("tale.txt", "ORCs attack"), ByteTokenizer()).tokens(), 11);
  // zstd of `PAR1`, as one raw block.
  const std::string parquet("\x28\xb5\x2f\xfd\x20\x04\x21\0\0PAR1", 13);
  const std::string path = folder.write("x.parquet.zst", parquet);
  EXPECT_NE(testing::error_of([&] { (void)find_table_files({path}); }, ErrorCode::data)
                .find("is Parquet inside a compression"),
            std::string::npos);
}

// For `bytes` too.
TEST(CompressedTexts, ACorpusHoldsTheTextsTokens) {
  const DataFolder folder;
  const std::string path =
      folder.write("lines.jsonl.gz", bytes_of(columnar_fixture("archives/lines.jsonl.gz")));
  const std::string expected = all_lines();
  const Corpus corpus(path, ByteTokenizer());
  ASSERT_EQ(corpus.tokens(), std::ssize(expected));
  std::vector<std::int32_t> ids(expected.size());
  corpus.read(0, ids);
  EXPECT_EQ(ByteTokenizer().decode(ids), expected);
  EXPECT_EQ(Corpus(path, ByteTokenizer()).fingerprint(), corpus.fingerprint());
}

TEST(CompressedTexts, ATableReadsTheRows) {
  const DataFolder folder;
  const std::string path =
      folder.write("pairs.tsv.gz", bytes_of(columnar_fixture("archives/pairs.tsv.gz")));
  const Table table({path}, {.columns = {"1", "2"}});
  ASSERT_EQ(table.rows(), 2);
  EXPECT_EQ(table.read(1), (std::vector<std::string>{"rain", "sün"}));
  const std::string lines =
      folder.write("lines.jsonl.zst", bytes_of(columnar_fixture("archives/lines.jsonl.zst")));
  EXPECT_EQ(Table({lines}, {.columns = {"text"}}).read(2999),
            std::vector<std::string>{"row 2999 éééé"});
}

}  // namespace
}  // namespace tessera::tasks
