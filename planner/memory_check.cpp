// One plan on rank 0, one check of the free memory on every rank, one common result.
#include "planner/memory_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
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

// Each rank reports its node's free memory, and the memory that it needs; with equal parts of a
// batch all need the same, and rank 0 alone plans it.
Json report_of(const training::Recipe& recipe, const Context& context, int ranks_in_process) {
  Json report = Json::object();
  const int local_ranks = std::max(context.world().local_size, 1);
  int sharing = local_ranks;
  if (const auto free = free_memory_of_rank(local_ranks, ranks_in_process)) {
    const std::string host = host_of_this_process();
    if (!free->of_host) sharing = std::max(ranks_in_process, 1);
    report = {{"free", free->bytes},
              {"place", free->place},
              {"of_host", free->of_host},
              {"ranks", local_ranks},
              {"host", host},
              // The ranks with the same text take their memory from the same place.
              {"shared_by", free->of_host ? host : fmt::format("{} {}", host, ::getpid())},
              {"sharing", sharing}};
  }
  if (!context.is_main() && recipe.data.rank_weights.are_equal()) return report;
  try {
    const PlanWorld world = planned_world_of(context, recipe);
    const MemoryPlan plan =
        plan_recipe(recipe_for_plan(recipe, context), world, recipe.train.steps == 1 ? 1 : 2,
                    share_to_check(recipe, context.rank(), context.world_size(), sharing));
    const MemoryNeed need = memory_need(recipe, world.device, plan.memory);
    report["need"] = need.bytes();
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

// Ranks that share a memory need their mean of it.
void use_mean_of_sharing_ranks(std::vector<Json>& reports) {
  std::map<std::string, std::vector<MemoryNeed::Kinds>> needs;
  for (const Json& report : reports) {
    if (!report.contains("shared_by")) continue;
    needs[report["shared_by"].get<std::string>()].push_back(
        report["kinds"].get<MemoryNeed::Kinds>());
  }
  for (Json& report : reports) {
    if (!report.contains("shared_by")) continue;
    MemoryNeed mean;
    mean.kinds = mean_of(needs.at(report["shared_by"].get<std::string>()));
    report["need"] = mean.bytes();
    report["kinds"] = mean.kinds;
  }
}

// With unequal parts of a batch, a rank may take less of it where others have memory of their own.
std::string way_out_of_weights(const training::Recipe& recipe, const Json& short_of, int ranks) {
  const bool can_move = short_of.at("sharing").get<int>() < ranks;
  if (!can_move || short_of.at("at_least").get<bool>()) return "";
  if (recipe.data.rank_weights.measured) return "; or lower data.rank_weights_limit";
  return recipe.data.rank_weights.given.empty()
             ? ""
             : "; or give it a smaller part in data.rank_weights";
}

// The report of the node with the least memory for a rank, if that is too little.
const Json* shortest(const std::vector<Json>& reports) {
  const Json* found = nullptr;
  for (const Json& report : reports) {
    if (!report.contains("free") || report["free"] >= report["need"]) continue;
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
    need.kinds.emplace_back(name_of(kind), bytes);
  }
  return need;
}

std::uint64_t MemoryNeed::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : kinds) sum += bytes;
  return sum;
}

std::string text_of(const MemoryNeed::Kinds& kinds) {
  std::string text;
  for (const auto& [name, bytes] : kinds) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(bytes));
  }
  return text;
}

MemoryNeed::Kinds mean_of(const std::vector<MemoryNeed::Kinds>& ranks) {
  MemoryNeed::Kinds mean;
  for (const MemoryNeed::Kinds& kinds : ranks) {
    for (const auto& [name, bytes] : kinds) {
      const auto same = [&name = name](const auto& kind) { return kind.first == name; };
      const auto found = std::find_if(mean.begin(), mean.end(), same);
      if (found == mean.end()) {
        mean.emplace_back(name, bytes);
      } else {
        found->second += bytes;
      }
    }
  }
  for (auto& [name, bytes] : mean) bytes /= ranks.size();
  return mean;
}

std::int64_t share_to_check(const training::Recipe& recipe, int rank, int ranks, int sharing) {
  if (!recipe.data.rank_weights.measured) {
    return shares_at_first(recipe, ranks)[static_cast<std::size_t>(rank)];
  }
  const std::int64_t all = training::batch_size_per_rank(recipe, ranks) * ranks;
  const std::int64_t others = ranks - sharing;  // with at least one sample each
  const std::int64_t most = std::min(sharing * largest_share(recipe, ranks), all - others);
  return (most - 1) / sharing + 1;
}

void check_memory(const training::Recipe& recipe, const Context& context, int ranks_in_process) {
  if (!recipe.train.memory_check || recipe.train.steps == 0) return;
  comm::Communicator& ranks = context.communicator();
  std::vector<Json> reports;
  for (const std::string& text :
       ranks.exchange(report_of(recipe, context, ranks_in_process).dump(), memory_check_tag)) {
    reports.push_back(Json::parse(text));
  }
  if (!reports.front().contains("need")) return;
  for (Json& report : reports) {
    if (report.contains("need")) continue;
    for (const char* name : {"need", "at_least", "kinds"}) report[name] = reports.front()[name];
  }
  const bool unequal = !recipe.data.rank_weights.given.empty();
  if (unequal) use_mean_of_sharing_ranks(reports);
  const Json* const report = shortest(reports);
  if (report == nullptr) return;
  std::string advice;
  if (context.is_main()) {
    const comm::OutsideWait planning(ranks);
    advice = way_out(recipe, context, *report) +
             way_out_of_weights(recipe, *report, context.world_size());
  }
  advice = ranks.exchange(advice, memory_check_tag).front();
  const auto on_host = (*report)["ranks"].get<int>();
  const bool several_hosts = context.world_size() > context.world().local_size;
  fail(ErrorCode::out_of_memory,
       "{}: a rank needs {}{}{} ({}), and {}{} has {} free for {}; {}; train.memory_check: false "
       "starts it anyway",
       recipe.source, unequal && (*report)["sharing"].get<int>() > 1 ? "on average " : "",
       (*report)["at_least"].get<bool>() ? "at least " : "",
       bytes_text((*report)["need"].get<std::uint64_t>()),
       text_of((*report)["kinds"].get<MemoryNeed::Kinds>()), (*report)["place"].get<std::string>(),
       several_hosts ? " on " + (*report)["host"].get<std::string>() : "",
       bytes_text((*report)["free"].get<std::uint64_t>()),
       on_host == 1 ? "it" : fmt::format("each of {}", counted(on_host, "rank")), advice);
}

}  // namespace tessera::planner
