// The HTML page of a comparison: the contents of a report stay data, and a file is complete or
// absent.
#include "cli/report/html_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "cli/report/html_page.h"
#include "logs/output_files.h"
#include "tests/cli/program_testing.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::read_text;
using testing::TemporaryFolder;
using Json = nlohmann::ordered_json;

Json small_report() {
  return {{"format", "tessera-bench"}, {"version", 1}, {"rows", Json::array()}};
}

// The text between the tags of the element that contains the report.
std::string embedded(const std::string& page) {
  const std::string open = R"(<script type="application/json" id="report">)";
  const std::size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

std::string page_error(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(HtmlReport, HoldsTheReportAsData) {
  Json report = small_report();
  report["recipe"] = "a \"quoted\" ünï\\code";
  EXPECT_EQ(Json::parse(embedded(html_report_text(report))), report);
}

TEST(HtmlReport, AReportIsNeverMarkup) {
  Json report = small_report();
  const std::string hostile =
      "</script><script>alert(1)</script><!--<img src=x onerror=f()>&lt;]]>";
  report["recipe"] = hostile;
  report["rows"].push_back({{"name", hostile}, {"axes", {{hostile, hostile}}}});
  const std::string page = html_report_text(report);
  const std::string data = embedded(page);
  EXPECT_EQ(data.find_first_of("<>&"), std::string::npos) << data;
  EXPECT_EQ(Json::parse(data), report);
  // The page has the same elements as that of an empty report.
  const auto count = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '<');
  };
  EXPECT_EQ(count(page), count(html_report_text(small_report())));
}

TEST(HtmlReport, MarksOfThePageInAReportStayText) {
  Json report = small_report();
  report["recipe"] = "@report@ @style@ @script@ @";
  EXPECT_EQ(Json::parse(embedded(html_report_text(report))), report);
}

TEST(HtmlReport, BytesThatAreNotUtf8AreReplaced) {
  Json report = small_report();
  report["recipe"] = std::string("a\xff\xc0z");
  EXPECT_EQ(Json::parse(embedded(html_report_text(report)))["recipe"], "a\uFFFD\uFFFDz");
}

TEST(HtmlReport, NonFiniteNumbersBecomeNull) {
  Json report = small_report();
  report["rows"].push_back({{"speedup", std::numeric_limits<double>::quiet_NaN()},
                            {"mfu", std::numeric_limits<double>::infinity()},
                            {"efficiency", nullptr}});
  const Json row = Json::parse(embedded(html_report_text(report)))["rows"][0];
  for (const char* key : {"speedup", "mfu", "efficiency"}) EXPECT_TRUE(row[key].is_null()) << key;
}

TEST(HtmlReport, RefusesOtherFilesThanReports) {
  EXPECT_THROW(html_report_text({{"format", "else"}}), std::logic_error);
  EXPECT_THROW(html_report_text({{"format", 3}}), std::logic_error);
  EXPECT_THROW(html_report_text(Json::array()), std::logic_error);
}

TEST(HtmlReport, NeedsNoOtherFiles) {
  const HtmlPage source = html_page();
  EXPECT_GE(source.scripts.size(), 5u);
  const std::string page = html_report_text(small_report());
  for (const char* forbidden : {"src=", "@import", "https://", "fetch(", "innerHTML", "eval("}) {
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden;
  }
  EXPECT_NE(page.find("Content-Security-Policy"), std::string::npos);
  // The only address is the name of an XML namespace, which is never opened.
  for (std::size_t at = page.find("http://"); at != std::string::npos;
       at = page.find("http://", at + 1)) {
    EXPECT_EQ(page.substr(at, 26), "http://www.w3.org/2000/svg");
  }
}

void check_html_place(const fs::path& file) {
  logs::OutputFiles().add("--html " + file.string(), file, is_html_report);
}

TEST(HtmlReport, ReplacesNoFileOfAnotherKind) {
  const TemporaryFolder folder;
  std::ofstream(folder / "other.html") << "<!doctype html>\n<title>Mine</title>\n";
  const std::string message =
      page_error([&] { check_html_place(folder / "other.html"); }, ErrorCode::configuration);
  EXPECT_NE(message.find("exists and has another format; name another file"), std::string::npos);
}

TEST(HtmlReport, ReplacesAFileAtomicallyAndKeepsALink) {
  const TemporaryFolder folder;
  const fs::path file = folder / "page.html";
  const std::string old = html_report_text({{"format", "tessera-plan"}});
  std::ofstream(file) << old;
  fs::create_symlink("page.html", folder / "link.html");
  check_html_place(folder / "link.html");
  EXPECT_EQ(read_text(file), old);
  write_html_report(small_report(), folder / "link.html");
  EXPECT_EQ(read_text(file), html_report_text(small_report()));
  EXPECT_TRUE(fs::is_symlink(folder / "link.html"));
  EXPECT_EQ(checkpoint::names_in_folder(folder / ".").size(), 2u);
}

TEST(HtmlReport, ADeviceIsWrittenToAndKept) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  const std::string message =
      page_error([] { write_html_report(small_report(), "/dev/full"); }, ErrorCode::checkpoint);
  EXPECT_EQ(message.find("--html /dev/full: cannot be written: "), 0u) << message;
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(HtmlReport, AnUnwritablePathIsReportedAtOnce) {
  const TemporaryFolder folder;
  const fs::path absent = folder / "absent" / "page.html";
  const std::string message =
      page_error([&] { check_html_place(absent); }, ErrorCode::configuration);
  EXPECT_EQ(message.find("--html " + absent.string() + ": cannot be written: "), 0u) << message;
  EXPECT_NE(message.find("No such file or directory"), std::string::npos) << message;
  page_error([&] { write_html_report(small_report(), absent); }, ErrorCode::configuration);
  const std::string is_folder =
      page_error([&] { check_html_place(folder / "."); }, ErrorCode::configuration);
  EXPECT_NE(is_folder.find("it is a folder"), std::string::npos) << is_folder;
  check_html_place(folder / "new.html");
  EXPECT_TRUE(checkpoint::names_in_folder(folder / ".").empty());
}

}  // namespace
}  // namespace tessera::cli
