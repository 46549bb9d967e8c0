// `tessera plan`: computes the memory and the traffic of a rank of a world, without the world.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text/byte_size.h"
#include "base/text/nearest.h"
#include "base/text/print.h"
#include "cli/report/html_report.h"
#include "cli/subcommands.h"
#include "comm/shared/join/rendezvous.h"
#include "engine/device/backend.h"
#include "engine/storage/output_file.h"
#include "logs/output_files.h"
#include "planner/advice.h"
#include "planner/calibrate.h"
#include "planner/cluster_file.h"
#include "planner/report.h"
#include "planner/sweep.h"
#include "planner/time_report.h"
#include "training/recipe/accelerate/config.h"
#include "training/recipe/values.h"

namespace tessera::cli {
namespace {

using planner::AskedStrategies;
using planner::TimedRow;
using training::Recipe;

void write_json(const std::string& file, const nlohmann::ordered_json& json) {
  if (!file.empty()) write_output("--json " + file, file, json.dump(2) + "\n");
}

void write_cluster(const std::string& file, const Cluster& cluster) {
  write_output("--calibrate " + file, file,
               planner::cluster_text(
                   cluster, {"Measured by tessera plan --calibrate with nothing else running; "
                             "docs/cluster.md describes the keys."}));
}

struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 1;
  std::int64_t group_size = 0;
  std::string strategy;
  std::string device;
  std::string device_memory;
  std::string json;
  std::string html;
  std::string cluster_name;
  std::string calibrate_file;
  std::vector<std::string> sweep;
  std::string config_file;

  [[nodiscard]] int run() const {
    if (!calibrate_file.empty()) return measure();
    TESSERA_CHECK(!file.empty(), ErrorCode::usage,
                  "recipe is required: the file to plan for, as in tessera plan RECIPE.yaml");
    const AskedStrategies asked = strategies();
    std::optional<Cluster> cluster;
    if (!cluster_name.empty()) cluster = planner::find_cluster(cluster_name);
    TESSERA_CHECK(cluster || (sweep.empty() && !asked.none && !asked.dp), ErrorCode::usage,
                  "{} compares times: name the cluster with --cluster",
                  sweep.empty() ? "--strategy none or dp" : "--sweep");
    std::optional<std::uint64_t> memory = memory_bytes();
    if (!memory && cluster) memory = cluster->memory;
    return sweep.empty() ? plan_one(asked, cluster, memory) : plan_sweep(asked, *cluster, memory);
  }

 private:
  [[nodiscard]] int measure() const {
    TESSERA_CHECK(file.empty(), ErrorCode::usage,
                  "--calibrate only measures this node: leave out the recipe");
    const std::filesystem::path folder = std::filesystem::absolute(calibrate_file).parent_path();
    TESSERA_CHECK(std::filesystem::is_directory(folder), ErrorCode::configuration,
                  "--calibrate {}: the folder {} does not exist", calibrate_file, folder.string());
    logs::OutputFiles().add("--calibrate " + calibrate_file, calibrate_file,
                            logs::begins_as("# Measured by tessera plan --calibrate", ""));
    const Cluster cluster =
        planner::calibrate({.folder = folder, .progress = [](const std::string& what) {
                              print_err("measuring: {}\n", what);
                            }});
    write_cluster(calibrate_file, cluster);
    print_out("{}: {} measured kernels, {:.3g} FLOP/s of float32, {:.3g} B/s of memory a core\n",
              calibrate_file, cluster.measured.size(), cluster.matrix_rate.at(float32),
              cluster.memory_rate);
    return 0;
  }

  // Before the work, so that an output that cannot be written is reported at once.
  void check_outputs() const {
    logs::OutputFiles outputs;
    outputs.add_input(file);
    outputs.add_input(config_file);
    outputs.add("--json " + json, json, logs::begins_as("{", R"("format": "tessera-plan")"));
    outputs.add("--html " + html, html, is_html_report);
  }

  [[nodiscard]] int plan_one(const AskedStrategies& asked, const std::optional<Cluster>& cluster,
                             std::optional<std::uint64_t> memory) const {
    const Recipe recipe = read_recipe(cluster, {});
    check_group(recipe);
    training::validate(recipe, world_size);
    check_outputs();
    planner::PlanReport report{.recipe = recipe,
                               .world = planned_world(recipe, world_size),
                               .device_memory = memory,
                               .plans = {},
                               .advice = {},
                               .least = {}};
    report.world.timed = cluster.has_value();
    planner::MemoryBudget budget{memory.value_or(0), false};
    if (!memory && report.world.device == DeviceType::cpu) budget = take_this_machine(report);
    make_plans(asked.sharded, report, budget);
    print_text(planner::plan_text(report));
    nlohmann::ordered_json result = planner::plan_json(report);
    if (cluster) {
      std::vector<TimedRow> rows;
      add_baselines(asked, report.world, recipe, *cluster, rows);
      for (const planner::StrategyPlan& plan : report.plans) {
        rows.push_back(planner::timed_row(plan, report.world, recipe, *cluster));
      }
      print_text(planner::time_text(rows, *cluster, memory));
      planner::add_time_json(result, rows, *cluster, memory);
    }
    write_json(json, result);
    if (!html.empty()) write_html_report(result, html);
    return planner::something_fits(report) ? 0 : static_cast<int>(ErrorCode::out_of_memory);
  }

  // CPU ranks without a given memory use the free memory of this node.
  static planner::MemoryBudget take_this_machine(planner::PlanReport& report) {
    const auto free = free_memory_of_host();
    if (!free) return {};
    const planner::MemoryBudget budget{free->bytes, true};
    report.device_memory = budget.of_rank(report.world.ranks);
    report.device_memory_of = free->place;
    return budget;
  }

  // Plans every combination separately: the recipe and the world without a combination may be
  // invalid. Texts about the whole world are those of the first combination.
  [[nodiscard]] int plan_sweep(const AskedStrategies& asked, const Cluster& cluster,
                               std::optional<std::uint64_t> memory) const {
    const std::vector<planner::SweepPoint> points = planner::sweep_points(sweep, world_size);
    const Recipe first = read_recipe(cluster, points.front().settings);
    check_outputs();
    const planner::PlanReport report{.recipe = first,
                                     .world = planned_world(first, points.front().world_size),
                                     .device_memory = memory,
                                     .plans = {},
                                     .advice = {},
                                     .least = {}};
    const std::vector<TimedRow> rows = swept_rows(points, cluster, asked);
    // If every row is refused, the first reason is an error; a single refused row stays in the
    // table.
    const bool any = std::any_of(rows.begin(), rows.end(),
                                 [](const TimedRow& timed) { return timed.row.plan.has_value(); });
    if (!any) fail(ErrorCode::configuration, "{}", rows.front().row.refused);
    print_out("{}: {}", first.source, counted(points.size(), "combination"));
    print_text(planner::time_text(rows, cluster, memory));
    nlohmann::ordered_json result = planner::plan_json(report);
    planner::add_time_json(result, rows, cluster, memory);
    write_json(json, result);
    if (!html.empty()) write_html_report(result, html);
    return planner::any_row_fits(rows, memory) ? 0 : static_cast<int>(ErrorCode::out_of_memory);
  }

  [[nodiscard]] Recipe read_recipe(const std::optional<Cluster>& cluster,
                                   const std::vector<std::string>& more) const {
    std::vector<std::string> settings = overrides;
    if (!device.empty()) {
      settings.push_back("train.device=" + device);
    } else if (cluster) {
      settings.emplace_back(cluster->device == DeviceType::cuda ? "train.device=cuda"
                                                                : "train.device=cpu");
    }
    if (group_size > 0) settings.push_back(fmt::format("sharding.group_size={}", group_size));
    settings.insert(settings.end(), more.begin(), more.end());
    Recipe recipe =
        training::load_recipe(file, settings, training::chosen_config_file(config_file));
    const AskedStrategies asked = strategies();
    if (asked.sharded.size() == 1) recipe.sharding.sharding_strategy = asked.sharded.front();
    return recipe;
  }

  [[nodiscard]] std::vector<TimedRow> swept_rows(const std::vector<planner::SweepPoint>& points,
                                                 const Cluster& cluster,
                                                 const AskedStrategies& asked) const {
    std::vector<TimedRow> rows;
    for (const planner::SweepPoint& point : points) {
      const Recipe recipe = read_recipe(cluster, point.settings);
      const bool own =
          point.strategies.none || point.strategies.dp || !point.strategies.sharded.empty();
      AskedStrategies chosen = own ? point.strategies : asked;
      if (chosen.sharded.empty() && !chosen.none && !chosen.dp) {
        chosen.sharded.push_back(recipe.sharding.sharding_strategy);
      }
      PlanWorld world = planned_world(recipe, point.world_size);
      world.timed = true;
      const std::size_t first = rows.size();
      add_baselines(chosen, world, recipe, cluster, rows);
      for (const Strategy one : chosen.sharded) {
        rows.push_back(
            planner::timed_row(planner::plan_strategy(recipe, world, one), world, recipe, cluster));
      }
      for (std::size_t i = first; i < rows.size(); ++i) rows[i].settings = point.settings;
    }
    return rows;
  }
  static void add_baselines(const AskedStrategies& asked, const PlanWorld& world,
                            const Recipe& recipe, const Cluster& cluster,
                            std::vector<TimedRow>& rows) {
    if (asked.none) rows.push_back(planner::row_of_one_rank(world, recipe, cluster));
    if (asked.dp) rows.push_back(planner::row_of_data_parallel(world, recipe, cluster));
  }

  // Empty: the recipe's strategy.
  [[nodiscard]] AskedStrategies strategies() const {
    return strategy.empty() ? AskedStrategies() : planner::strategies_named(strategy, "--strategy");
  }

  [[nodiscard]] std::optional<std::uint64_t> memory_bytes() const {
    if (device_memory.empty()) return std::nullopt;
    return read_memory_size("--device-memory", device_memory);
  }

  // Any strategy may be requested, not only the recipe's.
  void check_group(const Recipe& recipe) const {
    const auto group = recipe.sharding.group_size;
    TESSERA_CHECK(!group || world_size % *group == 0, ErrorCode::configuration,
                  "{}: sharding.group_size {} does not divide the {} of the world; plan for a "
                  "multiple of it (--world-size), or set a divisor of {}",
                  training::where(recipe, "sharding.group_size"), group.value_or(0),
                  counted(world_size, "rank"), world_size);
  }

  [[nodiscard]] static PlanWorld planned_world(const Recipe& recipe, int world_size) {
    const training::DeviceChoice choice = recipe.train.device;
    const bool gpus =
        choice == training::DeviceChoice::cuda ||
        (choice == training::DeviceChoice::automatic &&
         (world_size > comm::max_ranks_on_node || parse_device("auto").type == DeviceType::cuda));
    return {.ranks = world_size,
            .device = gpus ? DeviceType::cuda : DeviceType::cpu,
            .one_memory = {},
            .fixed_reduction_order = recipe.sharding.fixed_reduction_order};
  }

  static void make_plans(const std::vector<Strategy>& asked, planner::PlanReport& report,
                         const planner::MemoryBudget& budget) {
    const Recipe& recipe = report.recipe;
    const std::vector<Strategy> chosen =
        asked.empty() ? std::vector{recipe.sharding.sharding_strategy} : asked;
    for (const Strategy one : chosen) {
      report.plans.push_back(planner::plan_strategy(recipe, report.world, one));
      planner::plan_shares(recipe, report.world, report.plans.back());
    }
    // If every row is refused, the first reason is an error; a single refused row stays in the
    // table.
    const bool any =
        std::any_of(report.plans.begin(), report.plans.end(),
                    [](const planner::StrategyPlan& row) { return row.plan.has_value(); });
    if (!any) fail(ErrorCode::configuration, "{}", report.plans.front().refused);
    if (!planner::something_fits(report)) {
      PlanWorld untimed = report.world;
      untimed.timed = false;
      planner::Advices advices = planner::advise(recipe, untimed, budget);
      report.advice = std::move(advices.fitting);
      report.least = std::move(advices.least);
    }
  }
};

}  // namespace

Command describe_plan() {
  const auto options = std::make_shared<PlanCommand>();
  return {.arguments =
              {{.name = "recipe", .target = &options->file, .help = "The recipe", .type = "FILE"},
               {.name = "--set",
                .target = &options->overrides,
                .help = "Override a key, as in data.batch_size=1; repeatable",
                .type = "KEY=VALUE"},
               config_file_argument(&options->config_file),
               {.name = "--world-size",
                .target = &options->world_size,
                .help = "Ranks to plan for",
                .shows_default = true,
                .least = 1,
                .most = most_planned_ranks},
               {.name = "--group-size",
                .target = &options->group_size,
                .help = "HYBRID_*: ranks that share one copy; the same as sharding.group_size "
                        "(default: 8, or the largest divisor of the world below 8)",
                .least = 1},
               {.name = "--strategy",
                .target = &options->strategy,
                .help = "A sharding strategy, or all of them (default: the recipe's)",
                .type = "all|none|dp|" + planner::strategy_names("|")},
               {.name = "--device",
                .target = &options->device,
                .help = "The device of the ranks; the same as train.device",
                .type = "auto|cpu|cuda"},
               {.name = "--device-memory",
                .target = &options->device_memory,
                .help = "Memory of one rank, as in 80GB: reports if the plan fits, and the changes "
                        "that would make it fit. Default for CPU ranks: the free memory of this "
                        "node, divided by their number",
                .type = "BYTES"},
               {.name = "--cluster",
                .target = &options->cluster_name,
                .help = "The cluster to predict the time of a step for: a name or a file "
                        "(docs/cluster.md). Its memory is the default of --device-memory",
                .type = planner::shipped_cluster_names("|") + "|FILE"},
               {.name = "--sweep",
                .target = &options->sweep,
                .help = "With --cluster: a key and the values to compare, as world_size=8,16 "
                        "or strategy=all or sharding.activation_checkpointing=false,true; "
                        "repeatable, every combination is a row",
                .type = "KEY=VALUES"},
               {.name = "--calibrate",
                .target = &options->calibrate_file,
                .help = "Measure the CPUs of this node and write its cluster file. Takes a minute "
                        "or two; nothing else should run at the same time",
                .type = "FILE"},
               {.name = "--html",
                .target = &options->html,
                .help = "Write the plan as an HTML page to this file",
                .type = "FILE"},
               {.name = "--json",
                .target = &options->json,
                .help = "Write the plan as JSON to this file",
                .type = "FILE"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); },
          .footer =
              "Exit code 6: no planned strategy fits into --device-memory, or into the memory of "
              "this node."};
}

}  // namespace tessera::cli
