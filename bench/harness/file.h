// The file of a comparison: it is read to continue a measurement, and it is always written as a
// whole.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/harness/row.h"

namespace tessera::cli {

inline constexpr const char* bench_format = "tessera-bench";

// Throws Error(configuration), which begins with `option` and the path, if the file is not a
// comparison that this version reads. Returns null if the file does not exist or is empty.
BenchJson read_bench_file(const std::string& option, const std::filesystem::path& path);

class BenchFile {
 public:
  // An empty path: writes nothing. Throws Error(configuration) if the file cannot be written.
  BenchFile(const std::string& option, std::filesystem::path path);

  // Writes an intermediate report: it replaces the file by a rename, so that there is always a
  // complete one. If the file is not a regular file (a pipe, a device), only the last report is
  // written.
  void keep(const BenchJson& report);
  // Throws the errors of write_output() if the file system refuses (a full disk).
  void write(const BenchJson& report);

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
BenchComparison compare_reports(const BenchJson& report, const BenchJson& old, std::size_t asked);
// True if the row was measured in `old`.
bool has_measured(const BenchJson& old, const std::string& id);

}  // namespace tessera::cli
