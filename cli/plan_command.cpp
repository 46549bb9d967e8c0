// `tessera plan`: what a rank of a world would hold and move, without the world.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "cli/accelerate_config.h"
#include "cli/bytes_text.h"
#include "cli/nearest.h"
#include "cli/plan_advice.h"
#include "cli/plan_report.h"
#include "cli/recipe_values.h"
#include "cli/subcommands.h"
#include "engine/backend.h"
#include "kernels/base/error.h"
#include "sharding/comm/rendezvous.h"

namespace tessera::cli {
namespace {

// Opened before the work, so that a place that cannot be written is said at once.
class JsonFile {
 public:
  explicit JsonFile(const std::string& path) : path_(path) {
    if (path_.empty()) return;
    stream_.open(path_, std::ios::binary);
    TESSERA_CHECK(stream_.is_open(), ErrorCode::configuration, "--json {}: cannot be written: {}",
                  path_, describe_errno("open", errno));
  }
  void write(const nlohmann::ordered_json& json) {
    if (path_.empty()) return;
    stream_ << json.dump(2) << '\n';
    stream_.close();
    TESSERA_CHECK(stream_.good(), ErrorCode::runtime, "--json {}: {}", path_,
                  describe_errno("write", errno));
  }

 private:
  std::string path_;
  std::ofstream stream_;
};

struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 1;
  std::int64_t group_size = 0;
  std::string strategy;
  std::string device;
  std::string device_memory;
  std::string json;
  std::string config_file;

  [[nodiscard]] int run() const {
    const std::vector<Strategy> asked = strategies();
    const std::optional<std::uint64_t> memory = memory_bytes();
    std::vector<std::string> settings = overrides;
    if (!device.empty()) settings.push_back("train.device=" + device);
    if (group_size > 0) settings.push_back(fmt::format("sharding.group_size={}", group_size));
    Recipe recipe = load_recipe(file, settings, chosen_config_file(config_file));
    if (asked.size() == 1) recipe.sharding.sharding_strategy = asked.front();
    check_group(recipe);
    validate(recipe, world_size);
    JsonFile output(json);
    PlanReport report{.recipe = recipe,
                      .world = planned_world(recipe),
                      .device_memory = memory,
                      .plans = {},
                      .advice = {},
                      .least = {}};
    make_plans(asked, report);
    fmt::print("{}", plan_text(report));
    output.write(plan_json(report));
    return something_fits(report) ? 0 : static_cast<int>(ErrorCode::out_of_memory);
  }

 private:
  // None: the recipe's.
  [[nodiscard]] std::vector<Strategy> strategies() const {
    if (strategy.empty()) return {};
    std::vector<Strategy> all;
    std::vector<std::string> names = {"all"};
    for (const StrategyRow& row : strategy_table) {
      all.push_back(row.strategy);
      names.emplace_back(row.name);
      if (lower_case(row.name) == lower_case(strategy)) return {row.strategy};
    }
    if (lower_case(strategy) == "all") return all;
    fail(ErrorCode::usage, "--strategy {}: there are {}{}", strategy, fmt::join(names, ", "),
         did_you_mean(strategy, names));
  }

  [[nodiscard]] std::optional<std::uint64_t> memory_bytes() const {
    if (device_memory.empty()) return std::nullopt;
    const auto bytes = parse_bytes(device_memory);
    TESSERA_CHECK(bytes.has_value(), ErrorCode::usage,
                  "--device-memory {}: must be a number of bytes, as in 80GB, 79.2GiB or 1e11",
                  device_memory);
    return bytes;
  }

  // Every strategy may be asked for, whatever the recipe's is.
  void check_group(const Recipe& recipe) const {
    const auto group = recipe.sharding.group_size;
    TESSERA_CHECK(!group || world_size % *group == 0, ErrorCode::configuration,
                  "{}: sharding.group_size {} does not divide the {} ranks of the world",
                  where(recipe, "sharding.group_size"), group.value_or(0), world_size);
  }

  [[nodiscard]] PlanWorld planned_world(const Recipe& recipe) const {
    const DeviceChoice choice = recipe.train.device;
    const bool gpus =
        choice == DeviceChoice::cuda ||
        (choice == DeviceChoice::automatic &&
         (world_size > comm::max_ranks_on_host || parse_device("auto").type == DeviceType::cuda));
    TESSERA_CHECK(
        gpus || world_size <= comm::max_ranks_on_host, ErrorCode::configuration,
        "--world-size {}: CPU ranks are those of one host, at most {}; plan for GPUs with "
        "--device cuda",
        world_size, comm::max_ranks_on_host);
    return {.ranks = world_size,
            .device = gpus ? DeviceType::cuda : DeviceType::cpu,
            .one_memory = {},
            .fixed_reduction_order = recipe.sharding.fixed_reduction_order};
  }

  static void make_plans(const std::vector<Strategy>& asked, PlanReport& report) {
    const Recipe& recipe = report.recipe;
    const std::vector<Strategy> chosen =
        asked.empty() ? std::vector{recipe.sharding.sharding_strategy} : asked;
    for (const Strategy one : chosen) {
      report.plans.push_back(plan_strategy(recipe, report.world, one));
    }
    // What stands alone is an error; in a comparison it is a row.
    const bool any = std::any_of(report.plans.begin(), report.plans.end(),
                                 [](const StrategyPlan& row) { return row.plan.has_value(); });
    if (!any) fail(ErrorCode::configuration, "{}", report.plans.front().refused);
    if (!something_fits(report)) {
      Advices advices = advise(recipe, report.world, *report.device_memory);
      report.advice = std::move(advices.fitting);
      report.least = std::move(advices.least);
    }
  }
};

}  // namespace

Command describe_plan() {
  const auto options = std::make_shared<PlanCommand>();
  return {.arguments = {{.name = "recipe",
                         .target = &options->file,
                         .help = "The recipe",
                         .type = "FILE",
                         .required = true},
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
                         .help = "HYBRID_*: ranks that share one copy; the same as "
                                 "sharding.group_size; by default 8, or what divides the world",
                         .least = 1},
                        {.name = "--strategy",
                         .target = &options->strategy,
                         .help = "A sharding strategy, or all of them; by default the recipe's",
                         .type = "NAME|all"},
                        {.name = "--device",
                         .target = &options->device,
                         .help = "Where ranks would compute; the same as train.device",
                         .type = "auto|cpu|cuda"},
                        {.name = "--device-memory",
                         .target = &options->device_memory,
                         .help = "What a rank may take, as in 80GB: says whether it fits, and what "
                                 "would make it",
                         .type = "BYTES"},
                        {.name = "--json",
                         .target = &options->json,
                         .help = "Write the plan there as well, as JSON",
                         .type = "FILE"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); },
          .footer = "Exit code 6: nothing that was planned fits into --device-memory."};
}

}  // namespace tessera::cli
