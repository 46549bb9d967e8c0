// Times of a plan as text and as JSON, and recommendations from them.
#include "planner/time_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "planner/advice.h"
#include "planner/recipe_plan.h"

namespace tessera::planner {
namespace {

constexpr std::string_view mfu_formula =
    "operations of a rank's matrix products and attention (causal scores counted as seen, forward "
    "once and backward twice, nothing for recomputation) / (step_s * matrix_rate of their dtype)";

std::string seconds_text(double seconds) {
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds >= 0.1 ? 0 : 2);
  return fmt::format("{:.0f} us", seconds * 1e6);
}
std::string rate_text(double rate) {
  constexpr std::string_view prefixes[] = {"", "k", "M", "G"};
  std::size_t prefix = 0;
  for (; rate >= 99'999.5 && prefix + 1 < std::size(prefixes); ++prefix) rate /= 1000;
  return fmt::format("{:.{}f}{}", rate, rate < 100 ? 1 : 0, prefixes[prefix]);
}

std::string title_of_row(const TimedRow& timed) {
  std::string title = timed.name;
  if (timed.row.group_size > 0) title += fmt::format(", groups of {}", timed.row.group_size);
  if (!timed.settings.empty()) title += fmt::format(" {}", fmt::join(timed.settings, " "));
  return title;
}

double throughput(const TimedRow& timed) {
  return timed.samples / timed.time->seconds;
}
bool row_fits(const TimedRow& timed, std::optional<std::uint64_t> memory) {
  return !memory || timed.row.plan->total() <= *memory;
}

// The longest wait of a row.
std::pair<std::string_view, double> largest_wait(const ExposedSeconds& exposed) {
  const std::pair<std::string_view, double> waits[] = {
      {"gathers of the forward", exposed.gather_forward},
      {"gathers of the backward", exposed.gather_backward},
      {"reductions", exposed.reduce},
      {"all-reductions", exposed.all_reduce},
      {"copies to and from host or files", exposed.transfer},
      {"messages between ranks", exposed.other}};
  return *std::max_element(std::begin(waits), std::end(waits),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

std::string reason_for(const TimedRow& best, const std::vector<const TimedRow*>& fitting,
                       const std::vector<const TimedRow*>& too_large,
                       std::optional<std::uint64_t> memory) {
  const auto& [wait, seconds] = largest_wait(best.time->exposed);
  std::string reason =
      fmt::format("{} a step, {:.1f} % of it waiting", seconds_text(best.time->seconds),
                  100 * best.time->exposed.total() / best.time->seconds);
  if (seconds > 0.005 * best.time->seconds) reason += fmt::format(", most for {}", wait);
  if (fitting.size() > 1) {
    const TimedRow& next = *fitting[1];
    const double slower = throughput(best) / throughput(next) - 1;
    reason +=
        slower < 0.005
            ? fmt::format("; {} is as fast and takes {} against {}", title_of_row(next),
                          bytes_text(next.row.plan->total()), bytes_text(best.row.plan->total()))
            : fmt::format("; {} is next, {:.1f} % slower", title_of_row(next), 100 * slower);
  }
  for (const TimedRow* const larger : too_large) {
    if (throughput(*larger) <= throughput(best)) continue;
    reason += fmt::format("; {} would be faster and does not fit: {} of {}", title_of_row(*larger),
                          bytes_text(larger->row.plan->total()), bytes_text(*memory));
    break;
  }
  return reason;
}

nlohmann::ordered_json exposed_json(const ExposedSeconds& exposed) {
  return {{"gather_forward", exposed.gather_forward},
          {"gather_backward", exposed.gather_backward},
          {"reduce", exposed.reduce},
          {"all_reduce", exposed.all_reduce},
          {"transfer", exposed.transfer},
          {"other", exposed.other}};
}

nlohmann::ordered_json timed_json(const TimedRow& timed, std::optional<std::uint64_t> memory) {
  nlohmann::ordered_json json = {
      {"strategy", timed.name},     {"group_size", nullptr}, {"world_size", timed.world.ranks},
      {"settings", timed.settings}, {"memory", nullptr},     {"predicted", nullptr}};
  if (timed.row.group_size > 0) json["group_size"] = timed.row.group_size;
  if (timed.row.plan) {
    json["memory"] = {{"planned", timed.row.plan->total()},
                      {"kinds", kinds_json(timed.row.plan->memory)}};
    if (memory) json["fits"] = row_fits(timed, memory);
  } else {
    json["refused"] = timed.row.refused;
  }
  if (!timed.untimed.empty()) json["untimed"] = timed.untimed;
  if (!timed.time) return json;
  json["predicted"] = {{"step_s", timed.time->seconds},
                       {"compute_s", timed.time->compute},
                       {"exposed_s", exposed_json(timed.time->exposed)},
                       {"mfu", timed.mfu},
                       {"samples_per_s", throughput(timed)},
                       {"tokens_per_s", nullptr}};
  if (timed.tokens) json["predicted"]["tokens_per_s"] = *timed.tokens / timed.time->seconds;
  return json;
}

std::string time_line(const std::vector<std::string>& cells, std::size_t title) {
  std::string line = fmt::format("{:<{}}", cells.front(), title);
  for (std::size_t i = 1; i < cells.size(); ++i) line += fmt::format(" {:>10}", cells[i]);
  return line;
}

// If nothing of a world fits: its row with the least memory.
std::string least_text(const std::vector<TimedRow>& rows, std::optional<std::uint64_t> memory) {
  if (!memory) return {};
  std::map<int, std::vector<const TimedRow*>> worlds;
  for (const TimedRow& timed : rows) {
    if (timed.row.plan) worlds[timed.world.ranks].push_back(&timed);
  }
  std::string text;
  for (const auto& [ranks, planned] : worlds) {
    const TimedRow& least = **std::min_element(planned.begin(), planned.end(),
                                               [](const TimedRow* a, const TimedRow* b) {
                                                 return a->row.plan->total() < b->row.plan->total();
                                               });
    if (row_fits(least, memory)) continue;
    text += fmt::format("nothing fits on {} rank{}: the least is {} with {} of {}\n", ranks,
                        ranks == 1 ? "" : "s", title_of_row(least),
                        bytes_text(least.row.plan->total()), bytes_text(*memory));
  }
  return text;
}

std::vector<std::string> time_cells(const TimedRow& timed) {
  const ExposedSeconds& exposed = timed.time->exposed;
  const double per_s = timed.tokens ? *timed.tokens / timed.time->seconds : throughput(timed);
  return {title_of_row(timed),
          fmt::format("{}", timed.world.ranks),
          seconds_text(timed.time->seconds),
          rate_text(per_s),
          fmt::format("{:.1f} %", 100 * timed.mfu),
          bytes_text(timed.row.plan->total()),
          seconds_text(exposed.total()),
          seconds_text(exposed.gather_forward),
          seconds_text(exposed.gather_backward),
          seconds_text(exposed.reduce + exposed.all_reduce),
          seconds_text(exposed.transfer + exposed.other)};
}

void set_time(TimedRow& timed, const training::Recipe& recipe, const Cluster& cluster,
              const std::function<PredictedStep(const PlannedStep&)>& predict) {
  if (!timed.row.plan) return;
  const auto batches = static_cast<double>(
      recipe.train.accumulation_ramp.largest(recipe.train.gradient_accumulation_steps));
  timed.samples = static_cast<double>(training::batch_size_per_rank(recipe, timed.world.ranks)) *
                  timed.world.ranks / static_cast<double>(recipe.sharding.context_parallel) *
                  batches;
  if (training::predicts_tokens(recipe)) {
    const double rows = recipe.train.task == training::TaskKind::dpo ? 2 : 1;
    timed.tokens = timed.samples * rows * static_cast<double>(recipe.model.seq_len);
  }
  try {
    timed.time = predict(*timed.row.plan->step);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::configuration) throw;
    timed.untimed = error.what();
    return;
  }
  const bool alone = timed.world.device == DeviceType::cpu && timed.world.ranks == 1;
  const double peak =
      cluster.matrix_rate.at(timed.time->product_dtype) * (alone ? cluster.per_node : 1);
  timed.mfu = timed.time->model_operations / timed.time->seconds / peak;
}

// One rank has no others to share a batch or a sequence with.
training::Recipe of_one_rank(training::Recipe recipe) {
  recipe.data.rank_weights = {};
  recipe.sharding.context_parallel = 1;
  for (const char* key : {"data.rank_weights", "data.rebalance_every", "data.rank_weights_limit",
                          "sharding.context_parallel"}) {
    recipe.given.erase(key);
  }
  return recipe;
}

}  // namespace

TimedRow timed_row(const StrategyPlan& plan, const PlanWorld& world, const training::Recipe& recipe,
                   const Cluster& cluster) {
  TimedRow timed{.name = std::string(name_of(plan.strategy)), .row = plan, .world = world};
  set_time(timed, recipe, cluster,
           [&](const PlannedStep& step) { return predict_step(step, world, cluster); });
  return timed;
}

TimedRow row_of_one_rank(const PlanWorld& world, const training::Recipe& recipe,
                         const Cluster& cluster) {
  PlanWorld alone = world;
  alone.ranks = 1;
  const training::Recipe own = of_one_rank(recipe);
  TimedRow timed = timed_row(plan_strategy(own, alone, Strategy::no_shard), alone, own, cluster);
  timed.name = "none";
  return timed;
}

TimedRow row_of_data_parallel(const PlanWorld& world, const training::Recipe& recipe,
                              const Cluster& cluster) {
  TimedRow timed{.name = "dp", .row = {}, .world = world};
  timed.row.strategy = Strategy::no_shard;
  training::Recipe share = recipe;
  share.sharding.sharding_strategy = Strategy::no_shard;
  try {
    check_planned_world(world);
    training::validate(share, world.ranks);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::configuration) throw;
    timed.row.refused = error.what();
    return timed;
  }
  share = of_one_rank(std::move(share));
  share.data.batch_size = largest_share(recipe, world.ranks);
  share.data.split_batches = false;
  share.sharding.reduction_group = {};
  PlanWorld alone = world;
  alone.ranks = 1;
  timed.row = plan_strategy(share, alone, Strategy::no_shard);
  set_time(timed, of_one_rank(recipe), cluster, [&](const PlannedStep& step) {
    const auto bytes = static_cast<double>(timed.row.plan->memory.of(MemoryKind::parameters));
    return predict_data_parallel(step, bytes, world.ranks, cluster);
  });
  return timed;
}

bool any_row_fits(const std::vector<TimedRow>& rows, std::optional<std::uint64_t> device_memory) {
  return std::any_of(rows.begin(), rows.end(), [&](const TimedRow& timed) {
    return timed.row.plan && row_fits(timed, device_memory);
  });
}

std::vector<Recommendation> recommend(const std::vector<TimedRow>& rows,
                                      std::optional<std::uint64_t> device_memory) {
  struct OfWorld {
    std::vector<const TimedRow*> fitting, too_large;
  };
  std::map<int, OfWorld> worlds;
  for (const TimedRow& timed : rows) {
    if (!timed.time) continue;
    OfWorld& world = worlds[timed.world.ranks];
    (row_fits(timed, device_memory) ? world.fitting : world.too_large).push_back(&timed);
  }
  // Among rows with the same speed within half a percent, take the one with the least memory.
  const auto better = [](const TimedRow* a, const TimedRow* b) {
    return throughput(*a) > throughput(*b);
  };
  std::vector<Recommendation> all;
  for (auto& [ranks, world] : worlds) {
    if (world.fitting.empty()) continue;
    std::stable_sort(world.fitting.begin(), world.fitting.end(), better);
    std::stable_sort(world.too_large.begin(), world.too_large.end(), better);
    auto best = world.fitting.begin();
    for (auto it = best; it != world.fitting.end(); ++it) {
      if (throughput(**it) < 0.995 * throughput(*world.fitting.front())) break;
      if ((*it)->row.plan->total() < (*best)->row.plan->total()) best = it;
    }
    std::rotate(world.fitting.begin(), best, std::next(best));
    const TimedRow& chosen = *world.fitting.front();
    all.push_back({&chosen, reason_for(chosen, world.fitting, world.too_large, device_memory)});
  }
  return all;
}

std::string time_text(const std::vector<TimedRow>& rows, const Cluster& cluster,
                      std::optional<std::uint64_t> device_memory) {
  std::size_t title = 30;
  bool tokens = false;
  for (const TimedRow& timed : rows) {
    title = std::max(title, title_of_row(timed).size());
    tokens = tokens || timed.tokens.has_value();
  }
  std::string text =
      fmt::format("\na step on {}, {} a node, predicted:\n", cluster.name, cluster.per_node);
  text += time_line({"", "ranks", "step", tokens ? "tokens/s" : "samples/s", "MFU", "memory",
                     "waits", "gather fwd", "gather bwd", "reduce", "other"},
                    title) +
          "\n";
  for (const TimedRow& timed : rows) {
    if (timed.time) {
      text += time_line(time_cells(timed), title);
      if (!row_fits(timed, device_memory)) {
        text += fmt::format("  does not fit: {} too much",
                            bytes_text(timed.row.plan->total() - *device_memory));
      }
      text += "\n";
    } else {
      text += fmt::format("{:<{}} {:>10} {}: {}\n", title_of_row(timed), title, timed.world.ranks,
                          timed.row.plan ? "not timed" : "refused",
                          timed.row.plan ? timed.untimed : timed.row.refused);
    }
  }
  for (const Recommendation& one : recommend(rows, device_memory)) {
    text += fmt::format("recommended on {} rank{}: {}: {}\n", one.row->world.ranks,
                        one.row->world.ranks == 1 ? "" : "s", title_of_row(*one.row), one.reason);
  }
  return text + least_text(rows, device_memory);
}

void add_time_json(nlohmann::ordered_json& json, const std::vector<TimedRow>& rows,
                   const Cluster& cluster, std::optional<std::uint64_t> device_memory) {
  json["cluster"] = {{"name", cluster.name}, {"per_node", cluster.per_node}};
  json["mfu_formula"] = mfu_formula;
  json["rows"] = nlohmann::ordered_json::array();
  for (const TimedRow& timed : rows) json["rows"].push_back(timed_json(timed, device_memory));
  json["recommendations"] = nlohmann::ordered_json::array();
  for (const Recommendation& one : recommend(rows, device_memory)) {
    json["recommendations"].push_back({{"strategy", one.row->name},
                                       {"world_size", one.row->world.ranks},
                                       {"settings", one.row->settings},
                                       {"reason", one.reason}});
  }
}

}  // namespace tessera::planner
