// The file of a comparison: read when it is gone on with, written whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/harness/row.h"

namespace tessera::cli {

inline constexpr const char* bench_format = "tessera-bench";

// Throws Error(configuration), which begins with `option` and the path, for what is no comparison
// that this version reads; null where the file does not exist or is empty.
BenchJson read_bench_file(const std::string& option, const std::filesystem::path& path);

class BenchFile {
 public:
  // An empty path: nothing is written. Throws Error(configuration) where nothing can be.
  BenchFile(const std::string& option, std::filesystem::path path);

  // On the way: a file is replaced by a rename, so that there is always a whole one. What is no
  // regular file (a pipe, a device) gets the last one only.
  void keep(const BenchJson& report);
  // Throws what write_output() does when the file system refuses (a full disk).
  void write(const BenchJson& report);

 private:
  std::string what_;
  std::filesystem::path path_;
};

// What differs between two comparisons of the same rows, for people, and what of it is worse beyond
// the noise: by more than both spreads together, and of single rounds by more than 2 %. Memory,
// which hardly varies: by 2 %. Of `report` the first `asked` rows are judged.
struct BenchComparison {
  std::vector<std::string> lines;
  std::vector<std::string> regressions;
};
BenchComparison compare_reports(const BenchJson& report, const BenchJson& old, std::size_t asked);
// Whether the row was measured in `old`.
bool has_measured(const BenchJson& old, const std::string& id);

}  // namespace tessera::cli
