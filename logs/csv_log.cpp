// Rows of a run's metrics.
#include "logs/csv_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace tessera::logs {
namespace {

constexpr std::string_view csv_header =
    "step,loss,grad_norm,lr,tokens_per_s,samples_per_s,step_s,peak_bytes,cached_bytes,comm_bytes,"
    "exposed_comm_s,data_wait_s,evaluation,value";
constexpr auto csv_columns = std::count(csv_header.begin(), csv_header.end(), ',') + 1;

// A value that is not a finite number leaves the cell empty, which programs read as missing.
std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "";
}

std::int64_t csv_bytes_to_keep(const std::filesystem::path& path, std::int64_t resume_step) {
  const auto begins = [](std::string_view line) { return csv_header.starts_with(line); };
  const auto stays = [&](const std::string& line, std::int64_t number) {
    std::int64_t step = 0;
    const char* const end = line.data() + line.size();
    const auto parsed = std::from_chars(line.data(), end, step);
    const bool row = parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == ',' &&
                     std::count(line.begin(), line.end(), ',') + 1 == csv_columns;
    TESSERA_CHECK(number == 1 ? line == csv_header : row, ErrorCode::configuration,
                  "log.csv: {} exists and line {} is not a step of a run; name another file",
                  path.string(), number);
    return number == 1 || step <= resume_step;
  };
  const std::int64_t kept = bytes_of_lines("log.csv", path, begins, stays);
  return resume_step == 0 ? 0 : kept;
}

}  // namespace

CsvLog::CsvLog(const std::filesystem::path& path, std::int64_t resume_step)
    : file_("log.csv", path, [resume_step](const std::filesystem::path& there) {
        return csv_bytes_to_keep(there, resume_step);
      }) {}

void CsvLog::begin() {
  file_.begin();
  if (file_.bytes() == 0) file_.append(std::string(csv_header) + "\n", 0);
}

void CsvLog::write(const StepMetrics& m) {
  file_.append(
      fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},,\n", m.step, csv_number(m.loss),
                  csv_number(m.grad_norm), csv_number(m.lr), csv_number(m.tokens_per_s),
                  csv_number(m.samples_per_s), csv_number(m.step_s), m.peak_bytes, m.cached_bytes,
                  m.comm_bytes, csv_number(m.exposed_comm_s), csv_number(m.data_wait_s)),
      m.step);
  if (!m.of_task.empty()) write_evaluation(m.step, m.of_task);
}

void CsvLog::write_spike(const Spike& spike) {
  const std::int64_t step = spike.goes_on_after();
  file_.append(fmt::format("{},,,,,,,,,,,,spike_{},{}\n", step, name_of(spike.done), spike.step),
               step);
}

void CsvLog::write_evaluation(std::int64_t step,
                              const std::vector<std::pair<std::string, double>>& numbers) {
  std::string rows;
  for (const auto& [name, value] : numbers) {
    rows += fmt::format("{},,,,,,,,,,,,{},{}\n", step, name, csv_number(value));
  }
  file_.append(rows, step);
}

}  // namespace tessera::logs
