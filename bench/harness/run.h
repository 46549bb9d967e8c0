// Runs a comparison from its rows to its report: a pilot run, rounds in turns, and reports on the
// way.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/harness/file.h"
#include "bench/harness/grid.h"
#include "bench/harness/peer.h"
#include "bench/harness/row.h"

namespace tessera::bench {

struct BenchSettings {
  std::int64_t steps = 0;   // measured in a round; 0: as many as the budget allows
  std::int64_t rounds = 0;  // 0: three, or fewer if the budget requires it
  std::int64_t warmup = 3;  // steps of a run that are not measured
  double budget = 240;      // seconds for everything; steps and rounds are chosen to fit
  double time_limit = 0;    // of the whole comparison; 0: none
  double row_time_limit = 600;
  std::optional<std::uint64_t> device_memory;  // of one rank; absent: the memory of the node
  PeerOptions peers;
};

class BenchRun {
 public:
  BenchRun(const BenchGrid& grid, const BenchSettings& settings, std::vector<BenchRow> rows,
           RowRunner runner, BenchFile& file, std::string command);

  // Rows that are measured in `old` with their rounds, steps and warm-up are not measured again;
  // with `again` all rows are. Until the first round of a row is done, the old row is kept. If
  // steps and rounds are not given, they are those of our rows in `old`. Other rows of `old` stay
  // after ours.
  void take_over(const BenchReport& old, bool again);
  // Measures the rows that are not measured. Throws Stopped; the file then has all finished
  // measurements.
  void measure();
  // Complete, with the numbers that compare rows.
  [[nodiscard]] const BenchReport& report();

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] double passed() const;
  [[nodiscard]] double time_left() const;  // until the limit of the whole comparison
  [[nodiscard]] bool wanted(const BenchRow& row) const;
  [[nodiscard]] std::vector<BenchRow*> to_measure();
  void plan_memory();
  void check_peers_run();
  void pilot();
  void choose_steps(const std::vector<BenchRow*>& rows);
  RowRound run_once(BenchRow& row, const RowSteps& steps);
  RowRound run_peer_once(BenchRow& row, const RowSteps& steps, double seconds);
  void settle(BenchRow& row, const RowRound& round);
  [[nodiscard]] std::string compare_losses(const BenchRow& row, const RowRound& round) const;
  // Products are timed once for rows with the same products.
  [[nodiscard]] std::string products_key(const BenchRow& row) const;
  void time_products_of(const BenchRow& row);
  void take_products(BenchRow& row) const;
  void mark_not_run();
  void keep();
  // The row gets no further turn; its measurements stay.
  void give_up(BenchRow& row, RowState state, const std::string& reason, int code);
  void take_settings(const BenchReport& old);
  // As in the report.
  [[nodiscard]] RowResult shown(const BenchRow& row) const;
  void note(const std::string& line) const;

  const BenchGrid& grid_;
  BenchSettings settings_;
  std::vector<BenchRow> rows_;
  RowRunner runner_;
  BenchFile& file_;
  BenchReport report_;
  std::vector<RowResult> other_rows_;
  std::optional<ReportSettings> old_settings_;  // of the report that is continued
  std::map<std::string, RowResult> replaced_;   // its rows that are measured again, by id
  std::set<std::string> given_up_;              // ids
  Clock::time_point begin_ = Clock::now();
  // From the pilot run: a row's seconds outside of steps, its seconds in a step, its tokens per
  // sample.
  struct Estimate {
    double start = 0, step = 0, tokens = 0;
  };
  std::map<std::string, Estimate> estimates_;
  std::map<std::string, std::vector<ProductTimes>> products_;
  bool unkept_ = false;           // an intermediate report could not be written
  bool nothing_measured_ = true;  // all rows are kept ones
};

}  // namespace tessera::bench
