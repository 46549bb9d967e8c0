// `tessera bench --compare`: which changes are regressions and which are noise.
#include <gtest/gtest.h>

#include "bench/harness/file.h"
#include "tests/bench/bench_testing.h"

namespace tessera::bench {
namespace {

using testing::Compared;
using testing::compared;
using testing::TrainingFolder;

BenchReport report_of(double median, double low, double high, std::uint64_t memory = 1'000'000) {
  RowResult row;
  row.id = "a";
  row.name = "FULL_SHARD, 2 ranks, fp32";
  row.state = RowState::measured;
  row.samples_per_s = {median, low, high, {median}};
  row.memory.measured = memory;
  BenchReport report;
  report.rows.push_back(std::move(row));
  return report;
}

TEST(BenchCompare, ChangesWithinBothSpreadsAreNoise) {
  const BenchReport old = report_of(100, 98, 102);
  EXPECT_TRUE(compare_reports(report_of(93, 91, 95), old, 1).regressions.empty());
  EXPECT_EQ(compare_reports(report_of(91, 89, 93), old, 1).regressions.size(), 1u);
  EXPECT_TRUE(compare_reports(report_of(120, 118, 122), old, 1).regressions.empty());
  EXPECT_NE(compare_reports(report_of(120, 118, 122), old, 1).lines[0].find("faster"),
            std::string::npos);
  EXPECT_NE(compare_reports(report_of(97, 95, 99), old, 1).lines[0].find("within the noise"),
            std::string::npos);
}

TEST(BenchCompare, MemoryAndFailuresAreRegressions) {
  const BenchReport old = report_of(100, 98, 102);
  EXPECT_TRUE(compare_reports(report_of(100, 98, 102, 1'010'000), old, 1).regressions.empty());
  const BenchComparison more = compare_reports(report_of(100, 98, 102, 1'100'000), old, 1);
  ASSERT_EQ(more.regressions.size(), 1u);
  EXPECT_NE(more.regressions[0].find("of memory"), std::string::npos);
  BenchReport failed = report_of(100, 98, 102);
  failed.rows[0].state = RowState::failed;
  failed.rows[0].reason = "no room";
  ASSERT_EQ(compare_reports(failed, old, 1).regressions.size(), 1u);
  EXPECT_TRUE(compare_reports(old, failed, 1).regressions.empty());
}

TEST(BenchCompare, RowsThatOneSideLacksAreNamed) {
  BenchReport other = report_of(100, 98, 102);
  other.rows[0].id = "b";
  const BenchComparison comparison = compare_reports(report_of(1, 1, 1), other, 1);
  EXPECT_TRUE(comparison.regressions.empty());
  ASSERT_EQ(comparison.lines.size(), 2u);
  EXPECT_NE(comparison.lines[0].find("is not in the old report"), std::string::npos);
  EXPECT_NE(comparison.lines[1].find("is only in the old report"), std::string::npos);
}

TEST(BenchCompare, ARegressionHasItsOwnCode) {
  const TrainingFolder folder;
  const std::vector<std::string> rows = {"--strategies", "none", "--world-sizes", "1"};
  const Compared before = compared(folder, rows);
  ASSERT_EQ(before.ended.code, 0) << before.ended.err;
  // The old report pretends to be a thousand times as fast, without spread.
  nlohmann::json old = before.report;
  nlohmann::json& rate = old["rows"][0]["samples_per_s"];
  const double fast = 1000 * rate["median"].get<double>();
  rate["median"] = rate["low"] = rate["high"] = fast;
  folder.write("old.json", old.dump());
  std::vector<std::string> options = rows;
  options.insert(options.end(), {"--compare", folder.path("old.json")});
  const Compared after = compared(folder, options);
  EXPECT_EQ(after.ended.code, 9) << after.ended.err;
  EXPECT_NE(after.ended.out.find("regression: none, 1 rank, fp32: "), std::string::npos)
      << after.ended.out;
  rate["median"] = rate["low"] = rate["high"] = 1e-3;
  folder.write("old.json", old.dump());
  EXPECT_EQ(compared(folder, options).ended.code, 0);
  // A comparison without common rows, or of a report with itself, is refused.
  old["rows"][0]["id"] = "0";
  folder.write("old.json", old.dump());
  const Compared nothing = compared(folder, options);
  EXPECT_EQ(nothing.ended.code, 3) << nothing.ended.err;
  EXPECT_NE(nothing.ended.err.find("has none of these rows"), std::string::npos);
  options.back() = folder.path("bench.json");
  EXPECT_EQ(compared(folder, options).ended.code, 2);
}

// Somebody else's report, of the right shape: its names reach neither the terminal nor a line of
// their own.
TEST(BenchCompare, NamesOfTheOldReportAreVisibleText) {
  const TrainingFolder folder;
  const std::vector<std::string> rows = {"--strategies", "none", "--world-sizes", "1"};
  const Compared before = compared(folder, rows);
  ASSERT_EQ(before.ended.code, 0) << before.ended.err;
  nlohmann::json old = before.report;
  nlohmann::json other = old["rows"][0];
  other["id"] = other["name"] = "\x1b]0;pwned\x07\u202e\nregression: forged";
  old["rows"].push_back(other);
  folder.write("old.json", old.dump());
  std::vector<std::string> options = rows;
  options.insert(options.end(), {"--compare", folder.path("old.json")});
  const std::string out = compared(folder, options).ended.out;
  EXPECT_NE(out.find("\\x1b]0;pwned\\x07\\xe2\\x80\\xae\\x0aregression: forged"), std::string::npos)
      << out;
  EXPECT_EQ(out.find_first_of("\x1b\x07"), std::string::npos) << out;
  EXPECT_EQ(out.find("\nregression: forged"), std::string::npos) << out;
}

TEST(BenchCompare, SingleRoundsWithoutSpreadCountAsNoise) {
  const BenchReport old = report_of(100, 100, 100);
  EXPECT_TRUE(compare_reports(report_of(98.5, 98.5, 98.5), old, 1).regressions.empty());
  EXPECT_EQ(compare_reports(report_of(97.5, 97.5, 97.5), old, 1).regressions.size(), 1u);
  EXPECT_TRUE(compare_reports(report_of(50, 50, 50), old, 0).regressions.empty());  // not requested
}

}  // namespace
}  // namespace tessera::bench
