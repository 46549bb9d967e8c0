// Runs one row of a comparison and reads its results: the command, its files, and the row's
// numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/harness/grid.h"
#include "bench/harness/process.h"

namespace tessera::bench {

// The result of one run of a row.
struct RowRound {
  RowState state = RowState::measured;  // or failed, timed_out, does_not_fit
  std::string reason = {};
  int exit_code = 0;
  double seconds = 0;                                      // from start to end of the program
  double step_s = 0, samples_per_s = 0, tokens_per_s = 0;  // medians over the steps
  double low = 0, high = 0;                                // quartiles of samples/s over the steps
  std::vector<double> losses;
  RowMemory memory;
  StepFigures figures;
  std::optional<MeasuredPeer> peer;  // of a row of a peer
};

struct RowSteps {
  std::int64_t steps = 1, warmup = 3;
  bool memory = false;  // compare with the plan, which takes time
  bool copy = false;    // a copy that keeps cores busy; its results are not read
};

struct TimedProducts {
  std::optional<ProductTimes> times;  // absent without a problem: the step has no products
  std::string problem;
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
  // Times the products of the row's step alone; `tokens` are those of a sample.
  TimedProducts time_products(const BenchRow& row, double tokens, double seconds);
};

// Plans the row: `memory.planned`, or the reason why it is refused or does not fit. Without
// `device_memory` a rank has its part of the node's memory.
RowRound plan_row(const BenchRow& row, std::optional<std::uint64_t> device_memory);
// The row in the report before it is measured: without numbers.
RowResult unmeasured(const BenchRow& row, RowState state, const std::string& reason);
// Adds the numbers of a round, and its figures if it is the median round so far.
void add_round(RowResult& row, const RowRound& round);
// `rounds` must not be empty.
Spread spread_of(std::vector<double> rounds);

}  // namespace tessera::bench
