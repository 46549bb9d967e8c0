// From lists to rows.
#include "bench/harness/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/text/nearest.h"
#include "bench/harness/file.h"
#include "bench/harness/peer.h"
#include "checkpoint/io/checksum.h"
#include "engine/device/backend.h"
#include "sharding/policy/strategy.h"
#include "training/recipe/accelerate/config.h"
#include "training/recipe/other_words.h"
#include "training/recipe/schema.h"
#include "training/recipe/values.h"

namespace tessera::bench {
namespace {

// One choice of a value for each axis.
struct Combination {
  std::vector<std::string> settings;
  std::vector<std::pair<std::string, std::string>> axes;
};

std::vector<Combination> combinations(const BenchGrid& grid) {
  std::vector<Combination> all = {{grid.settings, {}}};
  for (const BenchAxis& axis : grid.axes) {
    std::vector<Combination> more;
    for (const Combination& combination : all) {
      for (const auto& [name, settings] : axis.values) {
        Combination next = combination;
        next.settings.insert(next.settings.end(), settings.begin(), settings.end());
        next.axes.emplace_back(axis.key, name);
        more.push_back(std::move(next));
      }
    }
    all = std::move(more);
  }
  return all;
}

std::string precision_of(const training::Recipe& recipe) {
  return recipe.sharding.mixed_precision == training::MixedPrecision::no     ? "fp32"
         : recipe.sharding.mixed_precision == training::MixedPrecision::bf16 ? "bf16"
                                                                             : "fp16";
}

std::string name_of_row(const BenchRow& row) {
  std::string name = fmt::format("{}, {} rank{}, {}", row.strategy, row.world_size,
                                 row.world_size == 1 ? "" : "s", row.precision);
  for (const auto& [key, value] : row.axes) {
    if (key == "sharding.mixed_precision") continue;
    const std::size_t dot = key.rfind('.');
    name += fmt::format(", {} {}", dot == std::string::npos ? key : key.substr(dot + 1), value);
  }
  return name;
}

// The measured configuration, without the number of rounds and the version.
nlohmann::json what_of(const BenchRow& row, const BenchGrid& grid) {
  nlohmann::json what = training::to_json(row.recipe);
  what.erase("log");
  what.erase("checkpoint");
  what["train"].erase("steps");
  what["train"].erase("lr_decay_steps");
  what["row"] = {{"strategy", row.strategy},
                 {"world_size", row.world_size},
                 {"threads_per_rank", grid.threads_per_rank},
                 {"processor", grid.machine.processor},
                 {"device", grid.machine.device}};
  if (grid.fill_cores) what["row"]["fill_cores"] = true;
  return what;
}

std::string hash_of(const nlohmann::json& what) {
  return fmt::format("{:016x}", checkpoint::checksum(json_text(what)));
}

std::string id_of(const BenchRow& row, const BenchGrid& grid) {
  nlohmann::json what = what_of(row, grid);
  if (row.peer) {
    what["peer"] = {{"name", row.peer->name},
                    {"mode", row.peer->mode},
                    {"backend", row.peer->backend},
                    {"compile", row.peer->compile}};
  }
  return hash_of(what);
}

std::string variant_of(const BenchRow& row, const BenchGrid& grid) {
  nlohmann::json what = what_of(row, grid);
  what["sharding"].erase("sharding_strategy");
  what["row"].erase("strategy");
  what["row"].erase("world_size");
  return hash_of(what);
}

std::string launcher_of(const BenchRow& row) {
  if (row.strategy == "none") return "tessera train";
  return fmt::format("tessera launch --{} {}", row.strategy == "dp" ? "threads" : "nproc-per-node",
                     row.world_size);
}

BenchRow make_row(const BenchGrid& grid, const Combination& combination,
                  const std::string& strategy, int world_size) {
  BenchRow row;
  row.strategy = strategy;
  row.world_size = world_size;
  row.axes = combination.axes;
  const bool alone = strategy == "none" || strategy == "dp";
  row.settings = combination.settings;
  row.settings.push_back("sharding.sharding_strategy=" + (alone ? "NO_SHARD" : strategy));
  row.recipe = training::load_recipe(grid.recipe, row.settings,
                                     training::chosen_config_file(grid.config_file));
  row.precision = precision_of(row.recipe);
  row.launcher = launcher_of(row);
  row.name = name_of_row(row);
  row.id = id_of(row, grid);
  row.variant = variant_of(row, grid);
  try {
    training::validate(row.recipe, world_size);
    TESSERA_CHECK(
        row.recipe.train.accumulation_ramp.empty() && row.recipe.data.seq_len_ramp.empty(),
        ErrorCode::configuration,
        "all steps of a benchmark are alike; set train.accumulation_ramp and data.seq_len_ramp to "
        "null");
  } catch (const Error& error) {
    row.refused = error;
  }
  return row;
}

// The feature that peers do not have, so that their work would differ from Tessera's. Empty: none.
std::string_view what_peers_lack(const training::Recipe& recipe) {
  if (training::trains_adapters(recipe)) return "an adapter (model.lora, model.adapter)";
  if (!recipe.train.parameter_groups.empty()) return "train.parameter_groups";
  if (recipe.train.teacher) return "train.teacher";
  if (recipe.train.task == training::TaskKind::dpo) return "train.task: dpo";
  if (recipe.train.prune.method) return "train.prune";
  if (recipe.model.quantize_aware != WeightRounding::none) return "model.quantize_aware";
  return recipe.sharding.ignored_modules ? "sharding.ignored_modules" : "";
}

void add_peers(const BenchGrid& grid, const BenchRow& own, std::vector<BenchRow>& rows) {
  for (const std::string& peer : grid.peers) {
    for (const std::string& mode : peer_modes(peer, own, grid.peer_modes)) {
      for (const bool compile : {false, true}) {
        if (compile && !grid.peer_compile) continue;
        BenchRow row = own;
        row.peer = BenchPeer{peer, mode, peer_backend(own), compile};
        row.launcher = peer_launcher(*row.peer, own.world_size);
        row.name = fmt::format("{} {}{}, {} rank{}, {}", peer, mode, compile ? " compiled" : "",
                               own.world_size, own.world_size == 1 ? "" : "s", own.precision);
        row.id = id_of(row, grid);
        const std::string_view lacks = what_peers_lack(row.recipe);
        if (!row.refused && !lacks.empty()) {
          row.refused.emplace(ErrorCode::configuration,
                              fmt::format("--peer {}: the recipe has {}, but peers train the whole "
                                          "model in the same way; leave out --peer",
                                          peer, lacks));
        }
        rows.push_back(std::move(row));
      }
    }
  }
}

void check_key(const std::string& key) {
  std::vector<std::string> names;
  for (const training::RecipeKey& known : training::recipe_keys()) {
    names.push_back(known.name);
    names.insert(names.end(), known.synonyms.begin(), known.synonyms.end());
  }
  TESSERA_CHECK(std::find(names.begin(), names.end(), key) != names.end(), ErrorCode::usage,
                "--axis {}: unknown key{} (tessera recipe --keys lists the keys)", key,
                did_you_mean(key, names));
}

}  // namespace

BenchAxis axis_of(const std::string& key, const std::vector<std::string>& values) {
  BenchAxis axis{key, {}};
  for (const std::string& value : values) axis.values.push_back({value, {key + "=" + value}});
  return axis;
}

BenchAxis offload_axis(const std::vector<std::string>& places) {
  BenchAxis axis{"sharding.offload", {}};
  for (const std::string& place : places) {
    std::vector<std::string> settings;
    for (const char* what : {"parameters", "gradients", "optimizer"}) {
      settings.push_back(fmt::format("sharding.offload.{}={}", what, place));
    }
    // A folder without files to put there would be refused.
    if (training::lower_case(place) != "file")
      settings.emplace_back("sharding.offload.folder=null");
    axis.values.emplace_back(place, std::move(settings));
  }
  return axis;
}

BenchAxis parse_axis(const std::string& text) {
  const std::size_t equals = text.find('=');
  TESSERA_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < text.size(),
                ErrorCode::usage, "--axis {}: must be KEY=VALUE,VALUE, as in data.batch_size=4,8",
                text);
  std::vector<std::string> values;
  std::istringstream stream(text.substr(equals + 1));
  for (std::string value; std::getline(stream, value, ',');) values.push_back(value);
  const std::string key = text.substr(0, equals);
  check_key(key);
  return axis_of(key, values);
}

std::vector<std::string> strategy_names(const std::vector<std::string>& wanted) {
  std::vector<std::string> known = {"none", "dp"};
  for (const StrategyRow& row : strategy_table) known.emplace_back(row.name);
  std::vector<std::string> names;
  for (const std::string& one : wanted) {
    std::string word = training::lower_case(one);
    std::replace(word.begin(), word.end(), '-', '_');
    const auto found = std::find_if(known.begin(), known.end(), [&](const std::string& name) {
      return training::lower_case(name) == word;
    });
    TESSERA_CHECK(found != known.end(), ErrorCode::usage, "--strategies {}: there are {}{}", one,
                  fmt::join(known, ", "), training::strategy_meant(one, known));
    if (std::find(names.begin(), names.end(), *found) == names.end()) names.push_back(*found);
  }
  return names;
}

std::vector<BenchRow> make_rows(const BenchGrid& grid) {
  const auto has = [&](const char* strategy) {
    return std::find(grid.strategies.begin(), grid.strategies.end(), strategy) !=
           grid.strategies.end();
  };
  std::vector<BenchRow> rows;
  for (const Combination& combination : combinations(grid)) {
    std::vector<std::pair<std::string, int>> wanted;
    if (has("none")) wanted.emplace_back("none", 1);
    for (const std::int64_t ranks : grid.world_sizes) {
      if (ranks == 1 && has("none")) continue;
      for (const std::string& strategy : grid.strategies) {
        if (strategy == "none") continue;
        if (ranks == 1 && strategy == "dp") continue;  // one thread is `none`
        wanted.emplace_back(strategy, static_cast<int>(ranks));
      }
    }
    for (const auto& [strategy, ranks] : wanted) {
      const BenchRow own = make_row(grid, combination, strategy, ranks);
      rows.push_back(own);
      add_peers(grid, own, rows);
    }
  }
  TESSERA_CHECK(!rows.empty(), ErrorCode::usage,
                "--strategies {} --world-sizes {}: nothing to measure; dp needs at least two ranks",
                fmt::join(grid.strategies, ","), fmt::join(grid.world_sizes, ","));
  return rows;
}

void take_model_work(std::vector<BenchRow>& rows) {
  std::map<std::string, std::shared_ptr<const ModelWork>> works;
  for (BenchRow& row : rows) {
    if (row.refused) continue;
    const nlohmann::json recipe = training::to_json(row.recipe);
    const nlohmann::json what = {recipe.at("model"), recipe.at("train").at("task")};
    std::shared_ptr<const ModelWork>& work = works[hash_of(what)];
    try {
      if (!work) work = std::make_shared<const ModelWork>(model_work(row.recipe));
    } catch (const Error& error) {
      row.refused = error;
    }
    row.work = work;
  }
}

PlanWorld bench_world(const BenchRow& row) {
  const training::DeviceChoice choice = row.recipe.train.device;
  const bool gpus = choice == training::DeviceChoice::cuda ||
                    (choice == training::DeviceChoice::automatic &&
                     backend_of(DeviceType::cuda).device_count() >= std::max(1, row.world_size));
  return {.ranks = row.world_size,
          .device = gpus ? DeviceType::cuda : DeviceType::cpu,
          .one_memory = row.strategy == "dp" ? std::optional(true) : std::nullopt,
          .fixed_reduction_order = row.recipe.sharding.fixed_reduction_order};
}

}  // namespace tessera::bench
