// The table and the JSON of a plan.
#include "planner/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/counted.h"
#include "base/text/byte_size.h"
#include "planner/recipe_plan.h"

namespace tessera::planner {
namespace {

constexpr MemoryKind all_kinds[] = {MemoryKind::parameters,  MemoryKind::gradients,
                                    MemoryKind::optimizer,   MemoryKind::communication,
                                    MemoryKind::activations, MemoryKind::other};

std::string row_name(const StrategyPlan& row) {
  return row.group_size == 0
             ? std::string(name_of(row.strategy))
             : fmt::format("{}, groups of {}", name_of(row.strategy), row.group_size);
}

std::string place_of(const MemoryPlan& plan) {
  return fmt::format("{}, {}", plan.phase, plan.unit.empty() ? "outside of units" : plan.unit);
}

std::string table_line(const std::vector<std::string>& cells) {
  std::string line = fmt::format("{:<34}", cells.front());
  for (std::size_t i = 1; i + 1 < cells.size(); ++i) line += fmt::format(" {:>13}", cells[i]);
  return line + "  " + cells.back() + "\n";
}

std::string memory_table(const PlanReport& report) {
  std::vector<std::string> header = {"bytes of a rank"};
  for (const MemoryKind kind : all_kinds) header.emplace_back(name_of(kind));
  header.insert(header.end(), {"total", "placed", "the peak is in"});
  std::string text = table_line(header);
  for (const StrategyPlan& row : report.plans) {
    if (!row.plan) {
      text += fmt::format("{:<34} refused: {}\n", row_name(row), row.refused);
      continue;
    }
    std::vector<std::string> cells = {row_name(row)};
    for (const MemoryKind kind : all_kinds) cells.push_back(bytes_text(row.plan->memory.of(kind)));
    cells.push_back(bytes_text(row.plan->total()));
    cells.push_back(bytes_text(row.plan->memory.placed));
    cells.push_back(place_of(*row.plan));
    text += table_line(cells);
  }
  return text;
}

// The table of memory that is offloaded to `where`; empty if there is none.
std::string elsewhere_table(const PlanReport& report, std::string_view where,
                            MemoryUse RankMemory::*use) {
  std::vector<MemoryKind> kinds;
  for (const MemoryKind kind : all_kinds) {
    const auto has_some = [&](const StrategyPlan& row) {
      return row.plan && (row.plan->memory.*use)[kind] > 0;
    };
    if (std::any_of(report.plans.begin(), report.plans.end(), has_some)) kinds.push_back(kind);
  }
  if (kinds.empty()) return {};
  std::vector<std::string> header = {fmt::format("bytes of a rank {}", where)};
  for (const MemoryKind kind : kinds) header.emplace_back(name_of(kind));
  header.insert(header.end(), {"total", ""});
  std::string text(1, '\n');
  text += table_line(header);
  for (const StrategyPlan& row : report.plans) {
    if (!row.plan) continue;
    const MemoryUse& bytes = row.plan->memory.*use;
    std::vector<std::string> cells = {row_name(row)};
    for (const MemoryKind kind : kinds) cells.push_back(bytes_text(bytes[kind]));
    cells.insert(cells.end(), {bytes_text(bytes.total()), ""});
    text += table_line(cells);
  }
  return text;
}

// "0, 2-4" for these numbers of ranks, which ascend.
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return text;
}

// The bytes of each rank, if ranks take unequal parts of a batch.
std::string shares_table(const PlanReport& report) {
  const RankWeightOptions& weights = report.recipe.data.rank_weights;
  if (weights.measured) {
    return fmt::format(
        "\ndata.rank_weights: auto: planned for the largest part of a batch, {} samples, where an "
        "equal one has {}\n",
        largest_share(report.recipe, report.world.ranks),
        training::batch_size_per_rank(report.recipe, report.world.ranks));
  }
  if (weights.are_equal()) return {};
  std::string text = "\n";
  text += table_line({"bytes of a rank by its samples", "samples", "total", "placed", "ranks"});
  for (const StrategyPlan& row : report.plans) {
    std::string name = row_name(row);
    for (const SharePlan& share : row.shares) {
      text += table_line({name, fmt::format("{}", share.samples), bytes_text(share.memory.total()),
                          bytes_text(share.memory.placed), ranks_text(share.ranks)});
      name.clear();
    }
  }
  return text;
}

std::string traffic_table(const PlanReport& report) {
  std::string text = table_line({"a step's collectives", "phase", "ranks", "calls", "bytes", ""});
  for (const StrategyPlan& row : report.plans) {
    if (!row.plan) continue;
    std::string name = row_name(row);
    for (const PlannedCollective& call : row.plan->collectives) {
      text +=
          table_line({name, std::string(call.phase), fmt::format("{}", call.ranks),
                      fmt::format("{}", call.calls), bytes_text(call.bytes), std::string(call.op)});
      name.clear();
    }
    if (row.plan->collectives.empty()) text += table_line({name, "", "", "none", "", ""});
  }
  return text;
}

std::string verdict(const PlanReport& report, const StrategyPlan& row) {
  const std::size_t total = row.plan->total();
  const std::uint64_t memory = *report.device_memory;
  if (total > memory) {
    return fmt::format("{} does not fit: {} too much\n", row_name(row), bytes_text(total - memory));
  }
  std::string text =
      fmt::format("{} fits, with {} to spare", row_name(row), bytes_text(memory - total));
  // Cached blocks are freed when other memory is needed.
  if (total + row.plan->memory.cached > memory) text += ", less than the pool would like to cache";
  return text + "\n";
}

std::string verdicts(const PlanReport& report) {
  if (!report.device_memory) return {};
  const int ranks = report.world.ranks;
  std::string text =
      report.device_memory_of.empty()
          ? fmt::format("\nof {}:\n", bytes_text(*report.device_memory))
          : fmt::format("\nof {}, which {} has free for {}:\n", bytes_text(*report.device_memory),
                        report.device_memory_of,
                        ranks == 1 ? "the rank" : fmt::format("each of {} ranks", ranks));
  for (const StrategyPlan& row : report.plans) {
    if (row.plan) text += "  " + verdict(report, row);
  }
  if (something_fits(report)) return text;
  if (report.advice.empty()) {
    text +=
        "  no strategy, batch, precision, offload, division of sequences or number of ranks that "
        "there is "
        "makes it fit";
    if (report.least) {
      text += fmt::format("; the least is {} with {}", bytes_text(report.least->total),
                          fmt::join(report.least->changes, " "));
    }
    return text + "\n";
  }
  text += "  it would fit, cheapest change first, with\n";
  for (const Advice& advice : report.advice) {
    text += fmt::format("    {}  ({}, {} less)\n", fmt::join(advice.changes, " "),
                        bytes_text(advice.total), bytes_text(advice.saved));
  }
  return text;
}

nlohmann::ordered_json row_json(const PlanReport& report, const StrategyPlan& row) {
  nlohmann::ordered_json json = {{"strategy", name_of(row.strategy)}, {"group_size", nullptr}};
  if (row.group_size != 0) json["group_size"] = row.group_size;
  if (!row.plan) {
    json["refused"] = row.refused;
    return json;
  }
  const MemoryPlan& plan = *row.plan;
  json["bytes"] = kinds_json(plan.memory);
  if (plan.memory.in_files.total() > 0) json["in_files"] = elsewhere_json(plan.memory.in_files);
  if (plan.memory.on_host.total() > 0) json["on_host"] = elsewhere_json(plan.memory.on_host);
  json["cached"] = plan.memory.cached;
  for (const SharePlan& share : row.shares) {
    json["by_samples"].push_back({{"samples", share.samples},
                                  {"ranks", share.ranks},
                                  {"bytes", kinds_json(share.memory)},
                                  {"placed", placed_json(share.memory)}});
  }
  json["placed"] = placed_json(plan.memory);
  json["peak"] = {{"phase", plan.phase}, {"unit", plan.unit}};
  json["collectives"] = nlohmann::ordered_json::array();
  for (const PlannedCollective& call : plan.collectives) {
    json["collectives"].push_back({{"op", call.op},
                                   {"phase", call.phase},
                                   {"ranks", call.ranks},
                                   {"calls", call.calls},
                                   {"bytes", call.bytes}});
  }
  json["moved_bytes"] = plan.moved_bytes();
  if (report.device_memory) json["fits"] = fits(report, plan);
  return json;
}

}  // namespace

bool fits(const PlanReport& report, const MemoryPlan& plan) {
  return !report.device_memory || plan.total() <= *report.device_memory;
}

bool something_fits(const PlanReport& report) {
  return std::any_of(report.plans.begin(), report.plans.end(),
                     [&](const StrategyPlan& row) { return row.plan && fits(report, *row.plan); });
}

// The micro-batch of a rank, as text.
std::string batch_text(const training::Recipe& recipe, int ranks) {
  const std::int64_t samples = largest_share(recipe, ranks);
  if (!training::predicts_tokens(recipe)) return counted(samples, "pair");
  const std::string tokens = counted(recipe.model.seq_len, "token");
  if (recipe.train.task == training::TaskKind::dpo) {
    return fmt::format("{} of 2 x {}", counted(samples, "pair"), tokens);
  }
  return fmt::format("{} x {}", samples, tokens);
}

std::string batches_text(const training::TrainRecipe& train) {
  const std::int64_t most = train.accumulation_ramp.largest(train.gradient_accumulation_steps);
  return (train.accumulation_ramp.empty() ? "" : "at most ") + counted(most, "batch");
}

std::string plan_text(const PlanReport& report) {
  const training::Recipe& recipe = report.recipe;
  std::string text = fmt::format(
      "{}: {} on {}, {}{} {}, {} a step\n\n", recipe.source, counted(report.world.ranks, "rank"),
      report.world.device == DeviceType::cuda ? "a GPU each" : "the CPUs of one node",
      recipe.data.rank_weights.are_equal() ? "" : "at most ",
      batch_text(recipe, report.world.ranks),
      recipe.sharding.context_parallel == 1
          ? "a rank"
          : fmt::format("on {} ranks together", recipe.sharding.context_parallel),
      batches_text(recipe.train));
  text += memory_table(report) + shares_table(report) +
          elsewhere_table(report, "in files", &RankMemory::in_files) +
          elsewhere_table(report, "on the host", &RankMemory::on_host);
  return text + "\n" + traffic_table(report) + verdicts(report);
}

nlohmann::ordered_json plan_json(const PlanReport& report) {
  nlohmann::ordered_json json = {
      {"format", "tessera-plan"},
      {"version", 1},
      {"recipe", report.recipe.source},
      {"world_size", report.world.ranks},
      {"device", report.world.device == DeviceType::cuda ? "cuda" : "cpu"},
      {"batch_size", training::batch_size_per_rank(report.recipe, report.world.ranks)},
      {"seq_len", report.recipe.model.seq_len},
      {"gradient_accumulation_steps", report.recipe.train.accumulation_ramp.largest(
                                          report.recipe.train.gradient_accumulation_steps)},
      {"device_memory", nullptr}};
  if (report.device_memory) json["device_memory"] = *report.device_memory;
  json["plans"] = nlohmann::ordered_json::array();
  for (const StrategyPlan& row : report.plans) json["plans"].push_back(row_json(report, row));
  json["advice"] = nlohmann::ordered_json::array();
  for (const Advice& advice : report.advice) {
    json["advice"].push_back(
        {{"changes", advice.changes}, {"total", advice.total}, {"saved", advice.saved}});
  }
  json["least"] = nullptr;
  if (report.advice.empty() && report.least) {
    json["least"] = {{"changes", report.least->changes},
                     {"total", report.least->total},
                     {"saved", report.least->saved}};
  }
  return json;
}

nlohmann::ordered_json elsewhere_json(const MemoryUse& use) {
  nlohmann::ordered_json json;
  for (const MemoryKind kind : all_kinds) {
    if (use[kind] > 0) json[std::string(name_of(kind))] = use[kind];
  }
  return json;
}

nlohmann::ordered_json placed_json(const RankMemory& memory) {
  return {{"total", memory.placed}, {"places", memory.step_placed}, {"live", memory.step_live}};
}

nlohmann::ordered_json kinds_json(const RankMemory& memory) {
  nlohmann::ordered_json json;
  for (const MemoryKind kind : all_kinds) json[std::string(name_of(kind))] = memory.of(kind);
  json["total"] = memory.total();
  return json;
}

}  // namespace tessera::planner
