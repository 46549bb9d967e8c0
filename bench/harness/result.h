// The report of a comparison: its rows, their states and their numbers. The members have the names
// and the order of the file (bench/harness/format.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/harness/products.h"

namespace tessera::bench {

using BenchJson = nlohmann::ordered_json;

enum class RowState : std::uint8_t { not_run, measured, refused, does_not_fit, failed, timed_out };
inline constexpr std::array<std::string_view, 6> row_state_names = {
    "not_run", "measured", "refused", "does_not_fit", "failed", "timed_out"};
inline std::string_view name_of(RowState state) {
  return row_state_names[static_cast<std::size_t>(state)];
}
inline std::optional<RowState> row_state_named(std::string_view name) {
  const auto* const found = std::find(row_state_names.begin(), row_state_names.end(), name);
  if (found == row_state_names.end()) return std::nullopt;
  return static_cast<RowState>(found - row_state_names.begin());
}

template <class T>
using NamedValues = std::vector<std::pair<std::string, T>>;

// The spread of a rate or a time over rounds. Without rounds the value was not measured, and the
// file has null.
struct Spread {
  double median = 0, low = 0, high = 0;
  std::vector<double> rounds;
};

struct RoundSettings {
  std::int64_t steps = 0, warmup = 0, rounds = 0;
};

struct RowMemory {
  std::optional<std::uint64_t> planned, measured, resident;
  std::optional<NamedValues<std::uint64_t>> kinds;
};

struct MovedBytes {
  std::string phase, collective;
  std::int64_t calls = 0;
  std::uint64_t bytes = 0;
};

// A step of a run, besides its time.
struct StepFigures {
  std::vector<MovedBytes> bytes_moved;
  std::optional<std::uint64_t> comm_bytes;
  std::optional<NamedValues<double>> exposed_s;
  std::optional<double> engine_s_per_unit;
  BenchJson timeline;  // as in the run's log.summary, for the page
};

// Another framework that trains the same model.
struct BenchPeer {
  std::string name;  // "pytorch"
  std::string mode;  // "fsdp2"
  std::string backend;
  bool compile = false;
};
// As its script reports it.
struct MeasuredPeer {
  std::string name, mode;
  std::optional<std::string> backend;  // absent: one process
  bool compile = false;
  std::optional<std::string> version;
  BenchJson further = BenchJson::object();  // its other members, for the page
};

// Tessera's row divided by a peer's row.
struct PeerRatio {
  std::string id;  // of Tessera's row
  double tokens_per_s = 0;
  std::optional<double> memory;
};

struct RowIdentity {
  std::string id;                      // identifies everything that affects the measurement
  std::optional<std::string> variant;  // the same, without strategy, ranks and peer
  std::string name;                    // "FULL_SHARD, 2 ranks, fp32"
  std::string launcher;                // the command that starts it, for people
  std::string strategy;  // a strategy of the table, "none" (one rank alone) or "dp" (threads)
  int world_size = 1;
  std::string precision;
  NamedValues<std::string> axes;
};

struct RowResult : RowIdentity, StepFigures {
  std::int64_t batch_size = 0;  // of a rank
  std::optional<MeasuredPeer> peer;
  std::optional<ModelFigures> model;
  std::optional<RoundSettings> settings;  // when it is measured
  RowState state = RowState::not_run;
  std::string reason;
  int exit_code = 0;
  Spread samples_per_s, tokens_per_s, step_s;
  RowMemory memory;
  std::optional<double> speedup, efficiency;
  std::optional<ProductTimes> products;
  std::optional<double> products_share, mfu;
  std::string mfu_formula;
  std::vector<double> losses;  // NaN: not a number in the file
  std::optional<PeerRatio> tessera;

  [[nodiscard]] std::size_t rounds() const { return samples_per_s.rounds.size(); }
  [[nodiscard]] bool is_measured() const { return state == RowState::measured && rounds() > 0; }
};

struct BenchMachine {
  std::string processor;
  int cores = 0;
  std::uint64_t memory_bytes = 0;
  std::string device, system, tessera;
  std::string matrix_products;  // the library of the timed products
};

struct ReportSettings : RoundSettings {
  std::optional<double> time_limit_s;
  double row_time_limit_s = 0, budget_s = 0;
  std::int64_t threads_per_rank = 1;
  bool fill_cores = false;
};

struct BenchReport {
  std::string recipe, command;
  BenchMachine machine;
  std::optional<ModelFigures> model;
  std::optional<ReportSettings> settings;
  std::vector<RowResult> rows;
};

}  // namespace tessera::bench
