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
#include "engine/storage/output_file.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;

const RowResult* row_with_id(const BenchReport& report, const std::string& id) {
  for (const RowResult& row : report.rows) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

void compare_memory(const std::string& name, const RowMemory& memory, const RowMemory& old,
                    BenchComparison& result) {
  const std::uint64_t now = memory.measured.value_or(0), before = old.measured.value_or(0);
  constexpr double tolerance = 0.02;
  if (before == 0 || static_cast<double>(now) <= static_cast<double>(before) * (1 + tolerance))
    return;
  result.regressions.push_back(
      fmt::format("{}: {} of memory, {} before", name, bytes_text(now), bytes_text(before)));
}

void compare_row(const RowResult& row, const RowResult& old, BenchComparison& result) {
  const std::string& name = row.name;
  if (!old.is_measured()) return;
  if (!row.is_measured()) {
    if (row.state != RowState::not_run) {
      result.regressions.push_back(
          fmt::format("{}: {} ({}); it was measured before", name, name_of(row.state), row.reason));
    }
    return;
  }
  const Spread &now = row.samples_per_s, &before = old.samples_per_s;
  constexpr double floor = 0.02;  // the spread of a single round is not meaningful
  const bool single = row.rounds() < 2 || old.rounds() < 2;
  const double noise = std::max((now.high - now.low) + (before.high - before.low),
                                single ? floor * before.median : 0.0);
  const double change = now.median - before.median;
  const char* verdict = change < -noise ? "slower" : change > noise ? "faster" : "within the noise";
  const std::string line =
      fmt::format("{}: {:.4g} samples/s, {:.4g} before ({:+.1f} %, {}; the noise is {:.2g})", name,
                  now.median, before.median, 100 * change / before.median, verdict, noise);
  result.lines.push_back(line);
  if (change < -noise) result.regressions.push_back(line);
  compare_memory(name, row.memory, old.memory, result);
  if (!row.reason.empty() && row.exit_code != 0)
    result.regressions.push_back(fmt::format("{}: failed later: {}", name, row.reason));
}

}  // namespace

std::optional<BenchReport> read_bench_file(const std::string& option, const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) || is_stream(path)) return std::nullopt;
  std::ifstream stream(path, std::ios::binary);
  TESSERA_CHECK(stream.is_open(), ErrorCode::configuration, "{} {}: cannot be read: {}", option,
                path.string(), describe_errno("open", errno));
  std::stringstream content;
  content << stream.rdbuf();
  if (content.str().empty()) return std::nullopt;
  const BenchJson report = BenchJson::parse(content.str(), nullptr, false);
  const bool ours = report.is_object() && report.value("format", BenchJson()) == bench_format &&
                    report.contains("rows") && report["rows"].is_array() &&
                    report.contains("recipe") && report.contains("machine");
  TESSERA_CHECK(ours, ErrorCode::configuration,
                "{} {}: is not a report of tessera bench; name another file", option,
                path.string());
  TESSERA_CHECK(report.value("version", BenchJson()) == bench_version, ErrorCode::configuration,
                "{} {}: has version {} of the format, but this program reads version {}", option,
                path.string(), json_text(report.value("version", BenchJson())), bench_version);
  return report_from(report, fmt::format("{} {}", option, path.string()));
}

BenchFile::BenchFile(const std::string& option, fs::path path)
    : what_(fmt::format("{} {}", option, path.string())), path_(std::move(path)) {
  if (!path_.empty()) check_output(what_, path_);
}

void BenchFile::keep(const BenchReport& report) {
  if (!path_.empty() && !is_stream(path_)) write(report);
}

void BenchFile::write(const BenchReport& report) {
  if (!path_.empty()) write_output(what_, path_, json_text(report_json(report), 1) + "\n");
}

bool has_measured(const BenchReport& old, const std::string& id) {
  const RowResult* row = row_with_id(old, id);
  return row != nullptr && row->is_measured();
}

BenchComparison compare_reports(const BenchReport& report, const BenchReport& old,
                                std::size_t asked) {
  BenchComparison result;
  for (std::size_t i = 0; i < std::min(asked, report.rows.size()); ++i) {
    const RowResult& row = report.rows[i];
    if (const RowResult* before = row_with_id(old, row.id)) {
      compare_row(row, *before, result);
    } else {
      result.lines.push_back(fmt::format("{}: is not in the old report", row.name));
    }
  }
  for (const RowResult& before : old.rows) {
    if (row_with_id(report, before.id) != nullptr) continue;
    result.lines.push_back(fmt::format("{}: is only in the old report", before.name));
  }
  return result;
}

}  // namespace tessera::bench
