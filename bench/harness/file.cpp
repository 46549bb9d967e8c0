// Reading, replacing and comparing reports.
#include "bench/harness/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "bench/harness/check.h"
#include "engine/storage/output_file.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

const BenchJson* row_with_id(const BenchJson& report, const std::string& id) {
  for (const BenchJson& row : report.at("rows")) {
    if (row.value("id", "") == id) return &row;
  }
  return nullptr;
}

struct Rate {
  double median = 0, low = 0, high = 0;
  [[nodiscard]] double spread() const { return high - low; }
};
Rate rate_of(const BenchJson& row) {
  const BenchJson& rate = row.at("samples_per_s");
  return {rate.at("median"), rate.at("low"), rate.at("high")};
}

void compare_memory(const std::string& name, const BenchJson& row, const BenchJson& old,
                    BenchComparison& result) {
  const auto measured = [](const BenchJson& of) {
    const BenchJson memory = of.value("memory", BenchJson::object());
    return memory.is_object() && memory.contains("measured") && memory["measured"].is_number()
               ? memory["measured"].get<double>()
               : 0.0;
  };
  const double now = measured(row), before = measured(old);
  constexpr double tolerance = 0.02;
  if (before <= 0 || now <= before * (1 + tolerance)) return;
  result.regressions.push_back(fmt::format("{}: {} of memory, {} before", name,
                                           bytes_text(static_cast<std::uint64_t>(now)),
                                           bytes_text(static_cast<std::uint64_t>(before))));
}

void compare_row(const BenchJson& row, const BenchJson& old, BenchComparison& result) {
  const std::string name = row.at("name");
  if (!is_measured(old)) return;
  if (!is_measured(row)) {
    if (row.value("status", "") != "not_run") {
      result.regressions.push_back(fmt::format("{}: {} ({}); it was measured before", name,
                                               row.value("status", ""), row.value("reason", "")));
    }
    return;
  }
  const Rate now = rate_of(row), before = rate_of(old);
  constexpr double floor = 0.02;  // the spread of a single round is not meaningful
  const bool single = rounds_of(row) < 2 || rounds_of(old) < 2;
  const double noise =
      std::max(now.spread() + before.spread(), single ? floor * before.median : 0.0);
  const double change = now.median - before.median;
  const char* verdict = change < -noise ? "slower" : change > noise ? "faster" : "within the noise";
  const std::string line =
      fmt::format("{}: {:.4g} samples/s, {:.4g} before ({:+.1f} %, {}; the noise is {:.2g})", name,
                  now.median, before.median, 100 * change / before.median, verdict, noise);
  result.lines.push_back(line);
  if (change < -noise) result.regressions.push_back(line);
  compare_memory(name, row, old, result);
  const std::string reason = row.value("reason", "");
  if (!reason.empty() && row.value("exit_code", 0) != 0)
    result.regressions.push_back(fmt::format("{}: failed later: {}", name, reason));
}

}  // namespace

BenchJson read_bench_file(const std::string& option, const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) || is_stream(path)) return {};
  std::ifstream stream(path, std::ios::binary);
  TESSERA_CHECK(stream.is_open(), ErrorCode::configuration, "{} {}: cannot be read: {}", option,
                path.string(), describe_errno("open", errno));
  std::stringstream content;
  content << stream.rdbuf();
  if (content.str().empty()) return {};
  BenchJson report = BenchJson::parse(content.str(), nullptr, false);
  const bool ours = report.is_object() && report.value("format", BenchJson()) == bench_format &&
                    report.contains("rows") && report["rows"].is_array() &&
                    report.contains("recipe") && report.contains("machine");
  TESSERA_CHECK(ours, ErrorCode::configuration,
                "{} {}: is not a report of tessera bench; name another file", option,
                path.string());
  TESSERA_CHECK(report.value("version", BenchJson()) == 1, ErrorCode::configuration,
                "{} {}: has version {} of the format, but this program reads version 1", option,
                path.string(), json_text(report.value("version", BenchJson())));
  for (const BenchJson& row : report["rows"]) {
    const bool whole = row.is_object() && row.contains("id") && row["id"].is_string() &&
                       row.contains("name") && row["name"].is_string() && row.contains("status") &&
                       row["status"].is_string();
    TESSERA_CHECK(whole, ErrorCode::configuration, "{} {}: a row has no id, name or status", option,
                  path.string());
  }
  check_bench_report(fmt::format("{} {}", option, path.string()), report);
  return report;
}

BenchFile::BenchFile(const std::string& option, fs::path path)
    : what_(fmt::format("{} {}", option, path.string())), path_(std::move(path)) {
  if (!path_.empty()) check_output(what_, path_);
}

void BenchFile::keep(const BenchJson& report) {
  if (!path_.empty() && !is_stream(path_)) write(report);
}

void BenchFile::write(const BenchJson& report) {
  if (!path_.empty()) write_output(what_, path_, json_text(report, 1) + "\n");
}

bool has_measured(const BenchJson& old, const std::string& id) {
  const BenchJson* row = row_with_id(old, id);
  return row != nullptr && is_measured(*row);
}

BenchComparison compare_reports(const BenchJson& report, const BenchJson& old, std::size_t asked) {
  BenchComparison result;
  for (std::size_t i = 0; i < std::min(asked, report.at("rows").size()); ++i) {
    const BenchJson& row = report.at("rows")[i];
    if (const BenchJson* before = row_with_id(old, row.at("id"))) {
      compare_row(row, *before, result);
    } else {
      result.lines.push_back(
          fmt::format("{}: is not in the old report", row.at("name").get<std::string>()));
    }
  }
  for (const BenchJson& before : old.at("rows")) {
    if (row_with_id(report, before.at("id")) != nullptr) continue;
    result.lines.push_back(
        fmt::format("{}: is only in the old report", before.at("name").get<std::string>()));
  }
  return result;
}

}  // namespace tessera::cli
