// One row of a comparison, run and read: the command, what its files say, and the row's JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/grid.h"
#include "bench/harness/process.h"

namespace tessera::cli {

using BenchJson = nlohmann::ordered_json;

// What one run of a row gave.
struct RowRound {
  std::string status = "measured";  // or failed, timed_out, does_not_fit
  std::string reason = {};
  int exit_code = 0;
  double seconds = 0;                                      // from start to end of the program
  double step_s = 0, samples_per_s = 0, tokens_per_s = 0;  // medians over the steps
  double low = 0, high = 0;                                // quartiles of samples/s over the steps
  BenchJson losses = BenchJson::array();
  BenchJson details = BenchJson::object();  // further members of the row
};

struct RowSteps {
  std::int64_t steps = 1, warmup = 3;
  bool memory = false;  // compare with the plan, which costs time
  bool copy = false;    // that keeps cores busy, and is not read
};

struct RowRunner {
  BenchProcesses& processes;
  std::filesystem::path folder;   // for the files of a run
  std::filesystem::path program;  // `tessera`
  std::string recipe;
  std::string config_file;
  int threads_per_rank = 1;
  int filled_ranks = 0;  // of all programs at a time, with copies of a row; 0: no copies

  [[nodiscard]] std::vector<std::string> command(const BenchRow& row, const RowSteps& steps) const;
  // What keeps the cores busy that the row leaves.
  [[nodiscard]] std::vector<std::vector<std::string>> copies(const BenchRow& row) const;
  // The variables that say how many threads a rank has.
  [[nodiscard]] std::map<std::string, std::string> environment() const;
  RowRound run(const BenchRow& row, const RowSteps& steps, double seconds);
  // Where a run of this recipe begins: a folder of its initial weights, for peers.
  std::filesystem::path initial_weights(const BenchRow& row, double seconds);
};

// The row in the report before it is measured: all members, none with a number.
BenchJson bench_row_json(const BenchRow& row, const std::string& status, const std::string& reason);
// Adds a round's numbers; its details where it is the median round so far.
void add_round(BenchJson& row, const RowRound& round);
std::size_t rounds_of(const BenchJson& row);
bool is_measured(const BenchJson& row);

// {"median", "low", "high"} of values, which are its rounds.
BenchJson spread_of(const std::vector<double>& values);

}  // namespace tessera::cli
