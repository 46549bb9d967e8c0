// Makes the rows of a comparison from lists of values.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/products.h"
#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// For any bytes: arguments and the output of programs need not be UTF-8.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// One list: a key of the recipe, or several keys that change together, and the values to compare.
struct BenchAxis {
  std::string key;  // its name in the report
  // The name of a value, and its settings (KEY=VALUE).
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
};

// Another framework that trains the same model.
struct BenchPeer {
  std::string name;  // "pytorch"
  std::string mode;  // "fsdp2"
  std::string backend;
  bool compile = false;
};

struct BenchRow {
  std::string id;        // identifies everything that affects the measurement
  std::string variant;   // the same, without strategy, ranks and peer
  std::string name;      // "FULL_SHARD, 2 ranks, fp32"
  std::string strategy;  // a strategy of the table, "none" (one rank alone) or "dp" (threads)
  std::string launcher;  // the command that starts it, for people
  int world_size = 1;
  std::string precision;
  std::vector<std::string> settings;  // settings of the recipe's keys in this row
  std::vector<std::pair<std::string, std::string>> axes;
  Recipe recipe;
  std::optional<BenchPeer> peer = {};
  std::shared_ptr<const ModelWork> work = {};  // one object for all rows of the same model
  std::string refused = {};                    // the reason why it cannot run
  int refused_code = 0;
  nlohmann::ordered_json result = {};  // as in the report
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
  nlohmann::ordered_json machine;
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

}  // namespace tessera::cli
