// The file of a comparison: it is read to continue a measurement, and it is always written as a
// whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/result.h"

namespace tessera::bench {

inline constexpr const char* bench_format = "tessera-bench";
inline constexpr int bench_version = 1;

// For any bytes: arguments and the output of programs need not be UTF-8.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

BenchJson report_json(const BenchReport& report);
// Throws Error(configuration), which begins with `where`, for a member of another type than this
// version writes. Missing members are unknown.
BenchReport report_from(const BenchJson& json, const std::string& where);
// The row that a peer's script wrote; not_run if there is none. Its spreads may lack their rounds.
RowResult read_peer_row(const std::filesystem::path& file);
// Reads log.memory and log.summary of a run; a file that does not exist changes nothing.
void read_memory(const std::filesystem::path& file, RowMemory& memory);
void read_summary(const std::filesystem::path& file, StepFigures& figures);

// Throws Error(configuration), which begins with `option` and the path, if the file is not a
// comparison that this version reads. Returns nothing if the file does not exist or is empty.
std::optional<BenchReport> read_bench_file(const std::string& option,
                                           const std::filesystem::path& path);

class BenchFile {
 public:
  // An empty path: writes nothing. Throws Error(configuration) if the file cannot be written.
  BenchFile(const std::string& option, std::filesystem::path path);

  // Writes an intermediate report: it replaces the file by a rename, so that there is always a
  // complete one. If the file is not a regular file (a pipe, a device), only the last report is
  // written.
  void keep(const BenchReport& report);
  // Throws the errors of write_output() if the file system refuses (a full disk).
  void write(const BenchReport& report);

 private:
  std::string what_;
  std::filesystem::path path_;
};

// The differences between two comparisons of the same rows, for people, and those that are worse
// beyond the noise: by more than both spreads together, or for single rounds by more than 2 %. For
// memory, which hardly varies: by more than 2 %. Only the first `asked` rows of `report` are
// judged.
struct BenchComparison {
  std::vector<std::string> lines;
  std::vector<std::string> regressions;
};
BenchComparison compare_reports(const BenchReport& report, const BenchReport& old,
                                std::size_t asked);
// True if the row was measured in `old`.
bool has_measured(const BenchReport& old, const std::string& id);

}  // namespace tessera::bench
