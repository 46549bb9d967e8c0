// Runs one row of a comparison and reads its results: the command, its files, and the row's JSON.
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

// The result of one run of a row.
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
  bool memory = false;  // compare with the plan, which takes time
  bool copy = false;    // a copy that keeps cores busy; its results are not read
};

struct RowRunner {
  BenchProcesses& processes;
  std::filesystem::path folder;   // for the files of a run
  std::filesystem::path program;  // `tessera`
  std::string recipe;
  std::string config_file;
  int threads_per_rank = 1;
  int filled_ranks = 0;  // ranks of all programs together, with copies of a row; 0: no copies

  [[nodiscard]] std::vector<std::string> command(const BenchRow& row, const RowSteps& steps) const;
  // The commands that use the cores that the row leaves free.
  [[nodiscard]] std::vector<std::vector<std::string>> copies(const BenchRow& row) const;
  // The variables that set the number of a rank's threads.
  [[nodiscard]] std::map<std::string, std::string> environment() const;
  RowRound run(const BenchRow& row, const RowSteps& steps, double seconds);
  // A folder with the initial weights of a run of this recipe, for peers.
  std::filesystem::path initial_weights(const BenchRow& row, double seconds);
};

// The row in the report before it is measured: all members, without numbers.
BenchJson bench_row_json(const BenchRow& row, const std::string& status, const std::string& reason);
// Adds the numbers of a round, and its details if it is the median round so far.
void add_round(BenchJson& row, const RowRound& round);
std::size_t rounds_of(const BenchJson& row);
bool is_measured(const BenchJson& row);

// {"median", "low", "high"} of the values of its rounds.
BenchJson spread_of(const std::vector<double>& values);

}  // namespace tessera::cli
