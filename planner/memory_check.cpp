// One plan on rank 0, one check of the free memory on every rank, one common result.
#include "planner/memory_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text/byte_size.h"
#include "planner/advice.h"
#include "planner/recipe_plan.h"

namespace tessera::planner {
namespace {

using Json = nlohmann::json;

constexpr comm::Tag memory_check_tag{0, 0, comm::Phase::setup};

std::string host_of_this_process() {
  std::array<char, 256> name{};
  TESSERA_SYSTEM(::gethostname(name.data(), name.size() - 1));
  return name.data();
}

// Each rank reports its node's free memory; rank 0 also reports the memory that a rank needs.
Json report_of(const training::Recipe& recipe, const Context& context, int ranks_in_process) {
  Json report = Json::object();
  const int local_ranks = std::max(context.world().local_size, 1);
  if (const auto free = free_memory_of_rank(local_ranks, ranks_in_process)) {
    report = {{"free", free->bytes},
              {"place", free->place},
              {"of_host", free->of_host},
              {"ranks", local_ranks},
              {"host", host_of_this_process()}};
  }
  if (!context.is_main()) return report;
  try {
    const PlanWorld world = planned_world_of(context, recipe);
    const MemoryPlan plan =
        plan_recipe(recipe_for_plan(recipe, context), world, recipe.train.steps == 1 ? 1 : 2);
    const MemoryNeed need = memory_need(recipe, world.device, plan.memory);
    report["need"] = need.bytes;
    report["at_least"] = need.at_least;
    report["kinds"] = need.kinds;
  } catch (const Error&) {
    // An error in the recipe is the same on every rank; each reports it when it builds the run.
  }
  return report;
}

// "it fits with --set ... (1.2 GiB)", or another way out.
std::string way_out(const training::Recipe& recipe, const Context& context, const Json& short_of) {
  const PlanWorld world = planned_world_of(context, recipe);
  if (world.device != DeviceType::cpu) return "keep less of it on the host (sharding.offload)";
  const auto ranks = static_cast<std::uint64_t>(context.world_size());
  const auto free = short_of.at("free").get<std::uint64_t>();
  const bool one_host = context.world_size() == context.world().local_size;
  const MemoryBudget budget = one_host && short_of.at("of_host").get<bool>()
                                  ? MemoryBudget{free * ranks, true}
                                  : MemoryBudget{free, false};
  const Advices advices = advise(recipe_for_plan(recipe, context), world, budget);
  if (advices.fitting.empty()) {
    return "no strategy, batch, precision or offload makes it fit: take a smaller model or a "
           "larger machine";
  }
  std::vector<std::string> ways;
  constexpr std::string_view of_a_plan = "--world-size ";  // not an option of train
  for (const Advice& advice : advices.fitting) {
    std::vector<std::string> changes = advice.changes;
    for (std::string& change : changes) {
      if (change.starts_with(of_a_plan)) change = change.substr(of_a_plan.size()) + " ranks";
    }
    ways.push_back(fmt::format("{} ({})", fmt::join(changes, " "), bytes_text(advice.total)));
  }
  return fmt::format("it fits with {}", fmt::join(ways, ", or with "));
}

// The report of the node with the least memory for a rank, if that is too little.
const Json* shortest(const std::vector<Json>& reports, std::uint64_t need) {
  const Json* found = nullptr;
  for (const Json& report : reports) {
    if (!report.contains("free") || report["free"].get<std::uint64_t>() >= need) continue;
    const bool less = found == nullptr || report["free"] < (*found)["free"];
    if (less) found = &report;
  }
  return found;
}

}  // namespace

MemoryNeed memory_need(const training::Recipe& recipe, DeviceType device,
                       const RankMemory& planned) {
  MemoryNeed need;
  need.at_least = training::batches_vary(recipe);
  constexpr MemoryKind kinds[] = {MemoryKind::parameters,  MemoryKind::gradients,
                                  MemoryKind::optimizer,   MemoryKind::communication,
                                  MemoryKind::activations, MemoryKind::other};
  for (const MemoryKind kind : kinds) {
    const bool of_batches = kind == MemoryKind::activations || kind == MemoryKind::other;
    if (of_batches && need.at_least) continue;
    const std::size_t bytes = device == DeviceType::cpu ? planned.of(kind) : planned.on_host[kind];
    if (bytes == 0) continue;
    need.bytes += bytes;
    need.kinds +=
        fmt::format("{}{} {}", need.kinds.empty() ? "" : ", ", name_of(kind), bytes_text(bytes));
  }
  return need;
}

void check_memory(const training::Recipe& recipe, const Context& context, int ranks_in_process) {
  if (!recipe.train.memory_check || recipe.train.steps == 0) return;
  comm::Communicator& ranks = context.communicator();
  std::vector<Json> reports;
  for (const std::string& text :
       ranks.exchange(report_of(recipe, context, ranks_in_process).dump(), memory_check_tag)) {
    reports.push_back(Json::parse(text));
  }
  const Json& main = reports.front();
  if (!main.contains("need")) return;
  const auto need = main["need"].get<std::uint64_t>();
  const Json* const report = shortest(reports, need);
  if (report == nullptr) return;
  std::string advice;
  if (context.is_main()) {
    const comm::OutsideWait planning(ranks);
    advice = way_out(recipe, context, *report);
  }
  advice = ranks.exchange(advice, memory_check_tag).front();
  const auto on_host = (*report)["ranks"].get<int>();
  const bool several_hosts = context.world_size() > context.world().local_size;
  fail(ErrorCode::out_of_memory,
       "{}: a rank needs {}{} ({}), and {}{} has {} free for {}; {}; train.memory_check: false "
       "starts it anyway",
       recipe.source, main["at_least"].get<bool>() ? "at least " : "", bytes_text(need),
       main["kinds"].get<std::string>(), (*report)["place"].get<std::string>(),
       several_hosts ? " on " + (*report)["host"].get<std::string>() : "",
       bytes_text((*report)["free"].get<std::uint64_t>()),
       on_host == 1 ? "it" : fmt::format("each of {}", counted(on_host, "rank")), advice);
}

}  // namespace tessera::planner
