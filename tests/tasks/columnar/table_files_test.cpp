// Which files a folder or a pattern means, and in which order.
#include "tasks/columnar/table_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

class TablesFolder : public DataFolder {
 public:
  // A file that begins as Parquet.
  void parquet(const std::string& name) const { put(name, "PAR1 and more"); }
  void put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    write(name, bytes);
  }
  // The names below the folder.
  [[nodiscard]] std::vector<std::string> found(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(path(name));
    std::vector<std::string> out;
    const auto files = find_table_files(paths).value();
    for (const TableFile& file : files) {
      out.push_back(std::filesystem::path(file.path).lexically_relative(path("")).string());
    }
    return out;
  }
  [[nodiscard]] std::string refusal(const std::string& name) const {
    return testing::error_of([&] { (void)find_table_files({path(name)}); }, ErrorCode::data);
  }
};

using Names = std::vector<std::string>;

TEST(TableFiles, AFolderOfSparkInTheOrderOfNames) {
  const TablesFolder folder;
  folder.put("out/_SUCCESS", "");
  folder.put("out/.part-00000.parquet.crc", "x");
  folder.put("out/README.md", "what this is");
  folder.parquet("out/part-00001.snappy.parquet");
  folder.parquet("out/part-00000.snappy.parquet");
  folder.parquet("out/part-00010.snappy.parquet");
  const Names expected = {"out/part-00000.snappy.parquet", "out/part-00001.snappy.parquet",
                          "out/part-00010.snappy.parquet"};
  EXPECT_EQ(folder.found({"out"}), expected);
  EXPECT_EQ(folder.found({"out/"}), expected);
  EXPECT_EQ(folder.found({"out/part-*"}), expected);
  std::filesystem::remove(folder.path("out/README.md"));
  EXPECT_EQ(folder.found({"out/*"}), expected);  // without _SUCCESS
  folder.parquet("marked/_a.parquet");
  EXPECT_EQ(folder.found({"marked/_*"}), Names{"marked/_a.parquet"});
  EXPECT_NE(folder.refusal("marked/*").find("no file has such a name"), std::string::npos);
}

TEST(TableFiles, AJobThatHasNotFinishedIsRefused) {
  const TablesFolder folder;
  folder.parquet("out/part-00000.parquet");
  folder.put("out/_temporary/0/task", "");
  EXPECT_NE(folder.refusal("out").find("has not finished"), std::string::npos);
}

TEST(TableFiles, FoldersOfPartitionsGiveColumns) {
  const TablesFolder folder;
  folder.parquet("out/lang=de/day=2026-01-02/a.parquet");
  folder.parquet("out/lang=a%2Fb%20c/day=1/a.parquet");
  const auto files = find_table_files({folder.path("out")}).value();
  ASSERT_EQ(files.size(), 2U);
  using Partition = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(files[0].partition, (Partition{{"lang", "a/b c"}, {"day", "1"}}));
  EXPECT_EQ(files[1].partition, (Partition{{"lang", "de"}, {"day", "2026-01-02"}}));
}

TEST(TableFiles, TheOrderInAFolderIsThatOfWholePaths) {
  const TablesFolder folder;
  folder.parquet("out/lang=de/a.parquet");
  folder.parquet("out/lang=de-AT/a.parquet");
  folder.parquet("out/lang=de.parquet");
  const std::string arrow = bytes_of(columnar_fixture("types.arrows"));
  folder.put("out/lang=en/a.arrow", arrow);
  folder.put("out/lang=en/b.arrow", arrow);
  folder.put("out/lang=en/state.json",
             R"({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]})");
  EXPECT_EQ(folder.found({"out"}),
            (Names{"out/lang=de-AT/a.parquet", "out/lang=de.parquet", "out/lang=de/a.parquet",
                   "out/lang=en/b.arrow", "out/lang=en/a.arrow"}));
}

TEST(TableFiles, AFolderPassesOverOtherCompressionsButNotOverTablesInThem) {
  const TablesFolder folder;
  folder.parquet("out/a.parquet");
  folder.put("out/raw.zip", "PK\x03\x04...");
  folder.put("out/notes.gz", "plain");
  EXPECT_EQ(folder.found({"out"}), Names{"out/a.parquet"});
  folder.put("out/b.tar.bz2", "BZh91AY&SY");
  EXPECT_NE(folder.refusal("out").find("by bzip2, which is not read"), std::string::npos);
}

TEST(TableFiles, AFolderOfDatasetsHasTheFilesOfItsState) {
  const TablesFolder folder;
  const std::string arrow = bytes_of(columnar_fixture("types.arrows"));
  folder.put("train/data-00000-of-00001.arrow", arrow);
  folder.put("train/cache-123.arrow", arrow);
  folder.put("train/state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})");
  EXPECT_EQ(folder.found({"train"}), Names{"train/data-00000-of-00001.arrow"});
  folder.put("train/state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}],
                                     "_indices_files": [{"filename": "indices.arrow"}]})");
  EXPECT_NE(folder.refusal("train").find("flatten_indices()"), std::string::npos);
  folder.put("dataset_dict.json", R"({"splits": ["train", "test"]})");
  const std::string text = folder.refusal("");
  EXPECT_NE(text.find("several splits; name one of them: " + folder.path("train")),
            std::string::npos)
      << text;
}

TEST(TableFiles, TextsAreNoTablesAndDoNotMixWithThem) {
  const TablesFolder folder;
  folder.put("a.txt", "text");
  folder.put("empty.txt", "");
  folder.put("parents.txt", "PARENTS and more");
  EXPECT_FALSE(find_table_files({folder.path("*.txt")}).has_value());
  EXPECT_FALSE(find_table_files({folder.path("missing")}).has_value());
  folder.parquet("b.parquet");
  EXPECT_NE(folder.refusal("*").find("a.txt is neither Parquet nor Arrow nor tar"),
            std::string::npos);
}

TEST(TableFiles, ANameThatIsWrongIsRefused) {
  const TablesFolder folder;
  folder.put("a.parquet", "not Parquet");
  EXPECT_NE(folder.refusal("a.parquet").find("does not begin as the Parquet file"),
            std::string::npos);
  EXPECT_NE(folder.refusal("missing.parquet").find("cannot be opened: access failed: No such file"),
            std::string::npos)
      << folder.refusal("missing.parquet");
  const std::string long_name(300, 'a');
  EXPECT_FALSE(find_table_files({folder.path(long_name)}).has_value());
  EXPECT_NE(folder.refusal(long_name + ".parquet").find("File name too long"), std::string::npos);
  folder.put("texts/a.txt", "text");
  EXPECT_NE(folder.refusal("texts").find("has no Parquet, Arrow or tar file"), std::string::npos);
}

}  // namespace
}  // namespace tessera::tasks
