// Compares plan and measurement.
#include "logs/memory_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text/byte_size.h"
#include "engine/storage/output_file.h"
#include "logs/log_file.h"
#include "planner/recipe_plan.h"
#include "planner/report.h"
#include "trainer/trainer.h"

namespace tessera::logs {
namespace {

constexpr const char* memory_format = "tessera-run-memory";
constexpr double tolerance_of_total = 0.02;
constexpr MemoryKind exact_kinds[] = {MemoryKind::parameters, MemoryKind::gradients,
                                      MemoryKind::optimizer, MemoryKind::communication};

// The plan of the run that begins.
MemoryPlan plan_of(const training::Recipe& recipe, const Context& context, int steps) {
  std::optional<std::int64_t> share;
  if (!recipe.data.rank_weights.measured) {
    const auto shares = planner::shares_at_first(recipe, context.world_size());
    share = shares[static_cast<std::size_t>(context.rank())];
  }
  return planner::plan_recipe(planner::recipe_for_plan(recipe, context),
                              planner::planned_world_of(context, recipe), steps, share);
}

}  // namespace

MemoryLog::MemoryLog(const training::Recipe& recipe, const Context& context,
                     std::int64_t steps_done)
    : path_(*recipe.log.memory),
      steps_left_(std::min<std::int64_t>(2, recipe.train.steps - steps_done)),
      batches_vary_(training::batches_vary(recipe) || recipe.data.rank_weights.measured),
      plan_is_of_last_rank_(recipe.sharding.context_parallel > 1) {
  check_output_file("log.memory", path_, memory_format);
  // A resumed run has its moments from the first step on, a new one from the second.
  planned_ = plan_of(recipe, context, steps_done == 0 && recipe.train.steps == 1 ? 1 : 2);
}

std::optional<std::string> MemoryLog::end_step(const Trainer& training) {
  if (steps_left_ <= 0 || --steps_left_ > 0) return std::nullopt;
  const RankMemory measured = training.memory();
  nlohmann::ordered_json json = {{"format", memory_format},
                                 {"planned", planner::kinds_json(planned_.memory)},
                                 {"measured", planner::kinds_json(measured)}};
  const auto add_elsewhere = [&](const char* name, MemoryUse RankMemory::*use) {
    const MemoryUse &plan = planned_.memory.*use, &run = measured.*use;
    if (plan.total() == 0 && run.total() == 0) return;
    json[name] = {{"planned", planner::elsewhere_json(plan)},
                  {"measured", planner::elsewhere_json(run)}};
  };
  add_elsewhere("in_files", &RankMemory::in_files);
  add_elsewhere("on_host", &RankMemory::on_host);
  json["placed"] = {{"planned", planner::placed_json(planned_.memory)},
                    {"measured", planner::placed_json(measured)}};
  write_output("log.memory: " + path_, path_, json.dump(2) + "\n");
  return memory_difference(planned_.memory, measured, batches_vary_, plan_is_of_last_rank_);
}

std::optional<std::string> memory_difference(const RankMemory& planned, const RankMemory& measured,
                                             bool at_most, bool total_at_most) {
  std::string text;
  const auto differ = [&](std::string_view what, std::size_t plan, std::size_t run) {
    text += fmt::format("{}{} {} planned and {} measured", text.empty() ? "" : ", ", what,
                        bytes_text(plan), bytes_text(run));
  };
  const auto off = [at_most](std::size_t plan, std::size_t run) {
    return at_most ? run > plan : run != plan;
  };
  for (const MemoryKind kind : exact_kinds) {
    if (off(planned.of(kind), measured.of(kind)))
      differ(name_of(kind), planned.of(kind), measured.of(kind));
    if (off(planned.in_files[kind], measured.in_files[kind]))
      differ(fmt::format("{} in files", name_of(kind)), planned.in_files[kind],
             measured.in_files[kind]);
    if (off(planned.on_host[kind], measured.on_host[kind]))
      differ(fmt::format("{} on the host", name_of(kind)), planned.on_host[kind],
             measured.on_host[kind]);
  }
  const auto plan = static_cast<double>(planned.total());
  const auto run = static_cast<double>(measured.total());
  const double beyond = at_most || total_at_most ? run - plan : std::abs(plan - run);
  if (beyond > tolerance_of_total * std::max(plan, run))
    differ("in total", planned.total(), measured.total());
  if (text.empty()) return std::nullopt;
  return "warning: memory is not as planned: " + text;
}

}  // namespace tessera::logs
