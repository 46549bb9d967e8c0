// The helper for Parquet, played by a shell script: what it sends, and each way in which it fails.
#include "tasks/columnar/parquet_helper.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "tests/support/errors.h"
#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

// Sets the program that plays the Python, for the time of a test.
class PlayedPython : public DataFolder {
 public:
  explicit PlayedPython(const std::string& script) {
    const std::string program = write("python", "#!/bin/sh\n" + script);
    ::chmod(program.c_str(), 0755);
    ::setenv(python_variable, program.c_str(), 1);
    write("a.parquet", "PAR1");
  }
  ~PlayedPython() { ::unsetenv(python_variable); }
  PlayedPython(const PlayedPython&) = delete;
  PlayedPython& operator=(const PlayedPython&) = delete;

  [[nodiscard]] std::vector<nlohmann::json> rows() const {
    return read_rows(path("a.parquet"), {"text"});
  }
  [[nodiscard]] std::string refusal(ErrorCode code) const {
    return testing::error_of([&] { (void)rows(); }, code);
  }
};

std::string send(const std::string& fixture) {
  return "cat " + columnar_fixture(fixture) + "\n";
}

TEST(ParquetHelper, RowsComeThroughThePipe) {
  // Like the real one, it goes on until its input ends.
  const PlayedPython python(send("helper-columns.arrows") + send("helper-rows.arrows") +
                            "cat >/dev/null\n");
  const auto rows = python.rows();
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[2], nlohmann::json::parse(R"(["three"])"));
}

TEST(ParquetHelper, WithoutPythonOrPyarrowTheWayOutIsNamed) {
  const PlayedPython python("echo \"No module named 'pyarrow'\" >&2; exit 9\n");
  std::string text = python.refusal(ErrorCode::configuration);
  EXPECT_NE(text.find("has none (No module named 'pyarrow')"), std::string::npos) << text;
  EXPECT_NE(text.find("pip install pyarrow"), std::string::npos) << text;
  ::setenv(python_variable, "/no/such/python", 1);
  text = python.refusal(ErrorCode::configuration);
  EXPECT_NE(text.find("/no/such/python cannot be started"), std::string::npos) << text;
  EXPECT_NE(text.find("TESSERA_PYTHON"), std::string::npos) << text;
}

TEST(ParquetHelper, ItsReasonIsTheError) {
  const PlayedPython python("printf 'Parquet magic bytes not found in footer' >&2; exit 3\n");
  EXPECT_EQ(python.refusal(ErrorCode::data),
            "data file " + python.path("a.parquet") + ": Parquet magic bytes not found in footer");
}

TEST(ParquetHelper, OneThatIsKilledIsReported) {
  const PlayedPython python(send("helper-columns.arrows") + "kill -9 $$\n");
  const std::string text = python.refusal(ErrorCode::data);
  EXPECT_NE(text.find("was ended by signal 9"), std::string::npos) << text;
}

TEST(ParquetHelper, RowsThatEndTooEarlyAreAnError) {
  for (const int bytes : {1, 7, 100, 250, 310}) {
    const PlayedPython python(send("helper-columns.arrows") + "head -c " + std::to_string(bytes) +
                              " " + columnar_fixture("helper-rows.arrows") + "\n");
    const std::string text = python.refusal(ErrorCode::data);
    EXPECT_NE(text.find("a.parquet"), std::string::npos) << text;
  }
}

TEST(ParquetHelper, AColumnWithoutANameIsRefused) {
  const PlayedPython python(send("helper-columns.arrows") + "cat >/dev/null\n");
  ParquetHelper helper;
  (void)helper.open(python.path("a.parquet"));
  const std::string text = testing::error_of(
      [&] {
        (void)helper.rows({"text", ""});
      },
      ErrorCode::data);
  EXPECT_NE(text.find("a.parquet: a column of Parquet without a name"), std::string::npos) << text;
}

TEST(ParquetHelper, WhatIsNotArrowIsAnErrorAndTheHelperEnds) {
  const PlayedPython python("yes garbage\n");
  const std::string text = python.refusal(ErrorCode::data);
  EXPECT_NE(text.find("a.parquet"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::tasks
