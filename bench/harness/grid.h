// What a comparison compares: lists of values, and the rows that they make.
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

// Of any bytes: those of an argument or of a program's output need not be UTF-8.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// One list: a key of the recipe, or several that change together, and the values to compare.
struct BenchAxis {
  std::string key;  // as the report has it
  // A value's name, and the settings (KEY=VALUE) that it stands for.
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
};

// Another program that trains the same.
struct BenchPeer {
  std::string name;  // "pytorch"
  std::string mode;  // "fsdp2"
  std::string backend;
  bool compile = false;
};

struct BenchRow {
  std::string id;        // of all that decides what is measured
  std::string variant;   // of that without strategy, ranks and peer: rows that are compared
  std::string name;      // "FULL_SHARD, 2 ranks, fp32"
  std::string strategy;  // a strategy of the table, "none" (one rank alone) or "dp" (threads)
  std::string launcher;  // what starts it, for people
  int world_size = 1;
  std::string precision;
  std::vector<std::string> settings;  // of the recipe's keys, in this row
  std::vector<std::pair<std::string, std::string>> axes;
  Recipe recipe;
  std::optional<BenchPeer> peer = {};
  std::shared_ptr<const ModelWork> work = {};  // one for all rows of the same model
  std::string refused = {};                    // why it cannot be run
  int refused_code = 0;
  nlohmann::ordered_json result = {};  // as it stands in the report
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
  bool fill_cores = false;  // with copies of a row that has fewer ranks than the largest world
  nlohmann::ordered_json machine;
};

// The axes of --precisions and its neighbours, and of --axis KEY=V1,V2.
BenchAxis axis_of(const std::string& key, const std::vector<std::string>& values);
BenchAxis offload_axis(const std::vector<std::string>& places);
// Throws Error(usage) for a text that is no KEY=V1,V2.
BenchAxis parse_axis(const std::string& text);

// The names as the table of strategies writes them. Throws Error(usage) for an unknown one.
std::vector<std::string> strategy_names(const std::vector<std::string>& wanted);

// The rows, a strategy's peers behind it, so that their turns are neighbours. Of one rank there is
// `none` where that is asked for, else each strategy. Throws Error(configuration) for a setting
// that no row could have (an unknown key or value); what one row cannot be makes it a refused one.
std::vector<BenchRow> make_rows(const BenchGrid& grid);

// Gives each row its model's work; a model that cannot be made refuses its rows.
void take_model_work(std::vector<BenchRow>& rows);

// Where the ranks of a row would compute, as plans are asked for it.
PlanWorld bench_world(const BenchRow& row);

}  // namespace tessera::cli
