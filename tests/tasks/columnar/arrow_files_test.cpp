// Arrow IPC files of each kind give pyarrow's rows; damaged ones give one error, and never a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tasks/columnar/table_reader.h"
#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

const std::vector<std::string> arrow_fixtures = {
    "types.arrow", "types.arrows",  "slices.arrow",     "lz4.arrow",
    "zstd.arrow",  "deltas.arrows", "dictionary.arrow", "rows.arrow",
    "views.arrow", "java.arrows",   "ids64.arrow",      "listviews.arrow"};

class ArrowFixture : public ::testing::TestWithParam<std::string> {
 public:
  [[nodiscard]] std::string path() const { return columnar_fixture(GetParam()); }
  [[nodiscard]] std::vector<std::string> columns() const {
    return expected_lines(GetParam()).front().get<std::vector<std::string>>();
  }
};

TEST_P(ArrowFixture, RowsArePyarrows) {
  std::vector<nlohmann::json> expected = expected_lines(GetParam());
  expected.erase(expected.begin());
  const std::vector<nlohmann::json> rows = read_rows(path(), columns());
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], expected[i]) << "row " << i;
}

TEST_P(ArrowFixture, ACutFileIsRefusedOrEndsBetweenBatches) {
  const std::string bytes = bytes_of(path());
  const DataFolder folder;
  const bool stream = GetParam().ends_with(".arrows");
  const std::size_t all = expected_lines(GetParam()).size() - 1;
  for (std::size_t length = 8; length < bytes.size(); length += 1 + length / 20) {
    const std::string cut = folder.write(GetParam(), bytes.substr(0, length));
    try {
      const std::size_t rows = read_rows(cut, columns()).size();
      EXPECT_TRUE(stream && rows <= all) << length;  // a stream's end mark is optional
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST_P(ArrowFixture, ChangedBytesNeverCrash) {
  const std::string bytes = bytes_of(path());
  const DataFolder folder;
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::string changed = bytes;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    try {
      (void)read_rows(folder.write(GetParam(), changed), columns());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ArrowFixture, ::testing::ValuesIn(arrow_fixtures),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

std::string refusal_of_column(const std::string& column) {
  return testing::error_of([&] { (void)read_rows(columnar_fixture("types.arrow"), {column}); },
                           ErrorCode::data);
}

TEST(ArrowFiles, AMissingColumnIsNamedWithThoseThatExist) {
  const std::string text = refusal_of_column("txt");
  EXPECT_NE(text.find("has no column txt; it has none, amount, id, u8"), std::string::npos) << text;
  EXPECT_NE(refusal_of_column("meta.nothing").find("no column meta.nothing"), std::string::npos);
}

TEST(ArrowFiles, ATypeThatIsNotReadIsNamed) {
  EXPECT_NE(refusal_of_column("amount").find("column amount is of the type decimal"),
            std::string::npos);
  EXPECT_NE(refusal_of_column("map").find("of the type map"), std::string::npos);
}

TEST(ArrowFiles, ViewsOfTheSameBytesHaveALimitTogether) {
  const std::string path = columnar_fixture("shared-views.arrow");
  const std::string text =
      testing::error_of([&] { (void)read_rows(path, {"texts"}); }, ErrorCode::data);
  EXPECT_NE(text.find("texts of views have 1153433600 bytes together"), std::string::npos) << text;
}

TEST(ArrowFiles, RowsOfALargeDictionaryComeAFewAtATime) {
  std::int64_t rows = 0;
  read_table(
      find_table_files({columnar_fixture("large-dictionary.arrow")}).value(),
      [](const ArrowSchema&, const TableFile&) { return std::vector<std::string>{"text"}; },
      [&](const TableChunk& chunk) {
        EXPECT_LE(chunk.rows, 4);  // of 1 MiB each
        rows += chunk.rows;
      });
  EXPECT_EQ(rows, 99);
}

TEST(ArrowFiles, AColumnByItsNumber) {
  const auto rows = read_rows(columnar_fixture("types.arrow"), {"3", "10"});
  EXPECT_EQ(rows[1], nlohmann::json::parse(R"([1, "row 1 é"])"));
}

}  // namespace
}  // namespace tessera::tasks
