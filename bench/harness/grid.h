// Makes the rows of a comparison from lists of values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bench/harness/result.h"
#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::bench {

// One list: a key of the recipe, or several keys that change together, and the values to compare.
struct BenchAxis {
  std::string key;  // its name in the report
  // The name of a value, and its settings (KEY=VALUE).
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
};

struct BenchRow : RowIdentity {
  std::vector<std::string> settings;  // settings of the recipe's keys in this row
  training::Recipe recipe;
  std::optional<BenchPeer> peer = {};
  std::shared_ptr<const ModelWork> work = {};  // one object for all rows of the same model
  std::optional<Error> refused = {};           // the reason why it cannot run
  RowResult result = {};
};

struct BenchGrid {
  std::string recipe;  // file
  std::string config_file;
  std::vector<std::string> settings;  // --set
  std::vector<std::string> strategies;
  std::vector<std::int64_t> world_sizes;
  std::vector<BenchAxis> axes;
  std::vector<std::string> peers;
  std::vector<std::string> peer_modes;  // empty: the counterparts of the strategies
  bool peer_compile = false;
  int threads_per_rank = 1;
  bool fill_cores = false;  // run copies of a row that has fewer ranks than the largest world
  BenchMachine machine;
};

// The axes of --precisions and similar options, and of --axis KEY=V1,V2.
BenchAxis axis_of(const std::string& key, const std::vector<std::string>& values);
BenchAxis offload_axis(const std::vector<std::string>& places);
// Throws Error(usage) for a text that is not KEY=V1,V2.
BenchAxis parse_axis(const std::string& text);

// The names as in the table of strategies. Throws Error(usage) for an unknown name.
std::vector<std::string> strategy_names(const std::vector<std::string>& wanted);

// The rows. A strategy's peers follow it, so that their turns are neighbours. For one rank there is
// `none` if it is requested, else each strategy. Throws Error(configuration) for a setting that is
// invalid in every row (an unknown key or value); if a setting is impossible in one row, that row
// is refused.
std::vector<BenchRow> make_rows(const BenchGrid& grid);

// Gives each row the work of its model; a model that cannot be built refuses its rows.
void take_model_work(std::vector<BenchRow>& rows);

// The world of a row, for its plan.
PlanWorld bench_world(const BenchRow& row);

}  // namespace tessera::bench
