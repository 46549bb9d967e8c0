// Tries changes, one plan for each.
#include "planner/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/recipe_plan.h"

namespace tessera::planner {
namespace {

constexpr std::size_t enough_advice = 3;

// In the order of the bytes that they move in a step; for equal bytes, in the order of the memory
// that they hold.
constexpr std::array<Strategy, 6> by_cost = {Strategy::no_shard,      Strategy::shard_optimizer,
                                             Strategy::shard_grad_op, Strategy::hybrid_shard_zero2,
                                             Strategy::hybrid_shard,  Strategy::full_shard};

// A changed recipe, and its changes.
struct Candidate {
  training::Recipe recipe;
  PlanWorld world;
  std::vector<std::string> changes;
};

Candidate with_strategy(Candidate candidate, Strategy strategy) {
  if (candidate.recipe.sharding.sharding_strategy == strategy) return candidate;
  candidate.recipe.sharding.sharding_strategy = strategy;
  candidate.changes.push_back(
      fmt::format("--set sharding.sharding_strategy={}", name_of(strategy)));
  return candidate;
}

Candidate with_bf16(Candidate candidate) {
  candidate.recipe.sharding.mixed_precision = training::MixedPrecision::bf16;
  candidate.changes.emplace_back("--set sharding.mixed_precision=bf16");
  return candidate;
}

Candidate with_recomputation(Candidate candidate) {
  candidate.recipe.sharding.activation_checkpointing = ActivationCheckpointing::full;
  candidate.changes.emplace_back("--set sharding.activation_checkpointing=true");
  return candidate;
}

Candidate with_inputs_on_host(Candidate candidate) {
  if (candidate.recipe.sharding.activation_checkpointing == ActivationCheckpointing::none)
    candidate = with_recomputation(std::move(candidate));
  candidate.recipe.sharding.activation_offload = true;
  candidate.changes.emplace_back("--set sharding.activation_offload=true");
  return candidate;
}

// Offload of the moments, then of all state that a rank keeps between steps, if the device's ranks
// support it.
std::vector<Candidate> with_offload(const Candidate& whole) {
  const bool gpu = whole.world.device == DeviceType::cuda;
  const Placement place = gpu ? Placement::host : Placement::file;
  std::vector<Candidate> all;
  Candidate candidate = whole;
  training::OffloadRecipe& offload = candidate.recipe.sharding.offload;
  const auto set = [&](std::optional<Placement>& what, std::string_view key) {
    what = place;
    candidate.changes.push_back(fmt::format("--set sharding.offload.{}={}", key, name_of(place)));
  };
  if (!gpu && !offload.folder) {
    offload.folder = "FOLDER";
    candidate.changes.emplace_back("--set sharding.offload.folder=FOLDER");
  }
  set(offload.optimizer, "optimizer");
  all.push_back(candidate);
  set(offload.parameters, "parameters");
  set(offload.gradients, "gradients");
  all.push_back(candidate);
  return all;
}

Candidate with_all_offloaded(Candidate candidate) {  // NOLINT(performance-*): as all changes
  return with_offload(candidate).back();
}

// The batch sizes from halving again and again, each with the same number of samples per step.
std::vector<Candidate> with_smaller_batches(const Candidate& whole) {
  std::vector<Candidate> smaller;
  for (std::int64_t parts = 2;; parts *= 2) {
    const std::int64_t shares = whole.recipe.data.split_batches
                                    ? training::batch_shares(whole.recipe, whole.world.ranks)
                                    : 1;
    if (whole.recipe.data.batch_size % (parts * shares) != 0) return smaller;
    Candidate candidate = whole;
    candidate.recipe.data.batch_size /= parts;
    candidate.recipe.train.gradient_accumulation_steps *= parts;
    candidate.changes.push_back(
        fmt::format("--set data.batch_size={}", candidate.recipe.data.batch_size));
    candidate.changes.push_back(fmt::format("--set train.gradient_accumulation_steps={}",
                                            candidate.recipe.train.gradient_accumulation_steps));
    StepRamp& ramp = candidate.recipe.train.accumulation_ramp;
    for (auto& [from, batches] : ramp.changes) batches *= parts;
    if (!ramp.empty()) {
      candidate.changes.push_back(
          fmt::format("--set 'train.accumulation_ramp={}'", ramp.to_string()));
    }
    smaller.push_back(std::move(candidate));
  }
}

// Sequences over 2, 4, 8 .. ranks, with as many micro-batches more, so that a step has the same
// samples.
std::vector<Candidate> with_context_parallel(const Candidate& whole) {
  std::vector<Candidate> all;
  if (whole.recipe.sharding.context_parallel != 1 || whole.recipe.data.split_batches) return all;
  for (int ranks = 2; ranks <= whole.world.ranks; ranks *= 2) {
    Candidate candidate = whole;
    training::TrainRecipe& train = candidate.recipe.train;
    candidate.recipe.sharding.context_parallel = ranks;
    candidate.changes.push_back(fmt::format("--set sharding.context_parallel={}", ranks));
    train.gradient_accumulation_steps *= ranks;
    candidate.changes.push_back(fmt::format("--set train.gradient_accumulation_steps={}",
                                            train.gradient_accumulation_steps));
    StepRamp& ramp = train.accumulation_ramp;
    for (auto& [from, batches] : ramp.changes) batches *= ranks;
    if (!ramp.empty()) {
      candidate.changes.push_back(
          fmt::format("--set 'train.accumulation_ramp={}'", ramp.to_string()));
    }
    try {
      training::validate(candidate.recipe, whole.world.ranks);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::configuration) throw;
      continue;  // not every task, length and world
    }
    all.push_back(std::move(candidate));
  }
  return all;
}

std::vector<Candidate> with_strategies(const Candidate& candidate) {
  std::vector<Candidate> all;
  for (const Strategy strategy : by_cost) {
    if (strategy == candidate.recipe.sharding.sharding_strategy) continue;
    if (training::is_hybrid(strategy) &&
        planned_group_size(candidate.recipe, candidate.world.ranks) == 1)
      continue;
    all.push_back(with_strategy(candidate, strategy));
  }
  return all;
}

// FULL_SHARD over twice as many ranks, four times, ...
std::vector<Candidate> with_more_ranks(const Candidate& candidate) {
  std::vector<Candidate> all;
  for (int ranks = candidate.world.ranks * 2; ranks <= most_planned_ranks; ranks *= 2) {
    const std::int64_t shares = training::batch_shares(candidate.recipe, ranks);
    if (candidate.recipe.data.split_batches && candidate.recipe.data.batch_size % shares != 0)
      break;
    Candidate larger = candidate;
    larger.world.ranks = ranks;
    larger.changes.push_back(fmt::format("--world-size {}", ranks));
    // A list has a number for each rank of the present world.
    if (!larger.recipe.data.rank_weights.given.empty()) {
      larger.recipe.data.rank_weights.given.clear();
      larger.changes.emplace_back("--set data.rank_weights=null");
    }
    all.push_back(std::move(larger));
  }
  return all;
}

// The changes that were tried so far.
class Search {
 public:
  // `now` is the memory of the recipe without changes.
  Search(const MemoryBudget& memory, std::uint64_t now) : memory_(memory), now_(now) {}

  // Takes the first candidate that fits, as long as more advice is needed.
  void look(const std::vector<Candidate>& candidates) {
    if (found_.fitting.size() == enough_advice) return;
    for (const Candidate& candidate : candidates) {
      const StrategyPlan row = plan_strategy(candidate.recipe, candidate.world,
                                             candidate.recipe.sharding.sharding_strategy);
      if (!row.plan) continue;
      const std::uint64_t total = row.plan->total();
      const Advice advice{candidate.changes, total, now_ - std::min(now_, total)};
      if (!found_.least || advice.total < found_.least->total) found_.least = advice;
      if (advice.total > memory_.of_rank(candidate.world.ranks)) continue;
      found_.fitting.push_back(advice);
      return;
    }
  }
  [[nodiscard]] bool nothing_yet() const { return found_.fitting.empty(); }
  [[nodiscard]] const Advices& found() const { return found_; }

 private:
  MemoryBudget memory_;
  std::uint64_t now_;
  Advices found_;
};

}  // namespace

std::int64_t planned_group_size(const training::Recipe& recipe, int world_size) {
  if (recipe.sharding.group_size) return *recipe.sharding.group_size;
  std::int64_t size = std::min(world_size, 8);
  while (world_size % size != 0) --size;
  return size;
}

namespace {

training::Recipe with_groups(const training::Recipe& recipe, const PlanWorld& world,
                             Strategy strategy) {
  training::Recipe chosen = recipe;
  chosen.sharding.sharding_strategy = strategy;
  if (training::is_hybrid(strategy)) {
    chosen.sharding.group_size = planned_group_size(recipe, world.ranks);
  }
  return chosen;
}

}  // namespace

StrategyPlan plan_strategy(const training::Recipe& recipe, const PlanWorld& world,
                           Strategy strategy) {
  StrategyPlan row;
  row.strategy = strategy;
  const training::Recipe chosen = with_groups(recipe, world, strategy);
  if (training::is_hybrid(strategy)) row.group_size = *chosen.sharding.group_size;
  try {
    check_planned_world(world);
    training::validate(chosen, world.ranks);
    row.plan = plan_recipe(chosen, world);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::configuration) throw;
    row.refused = error.what();
  }
  return row;
}

void plan_shares(const training::Recipe& recipe, const PlanWorld& world, StrategyPlan& row) {
  if (!row.plan || recipe.data.rank_weights.given.empty()) return;
  const training::Recipe chosen = with_groups(recipe, world, row.strategy);
  PlanWorld untimed = world;
  untimed.timed = false;
  std::map<std::int64_t, std::vector<int>, std::greater<>> ranks;
  const std::vector<std::int64_t> shares = shares_at_first(recipe, world.ranks);
  for (int rank = 0; rank < world.ranks; ++rank) {
    ranks[shares[static_cast<std::size_t>(rank)]].push_back(rank);
  }
  for (auto& [samples, those] : ranks) {
    const RankMemory memory =
        row.shares.empty() ? row.plan->memory : plan_recipe(chosen, untimed, 2, samples).memory;
    row.shares.push_back({samples, std::move(those), memory});
  }
}

Advices advise(const training::Recipe& recipe, const PlanWorld& world, const MemoryBudget& memory) {
  const Candidate now{recipe, world, {}};
  const bool fp32 = recipe.sharding.mixed_precision == training::MixedPrecision::no;
  const bool keeps = recipe.sharding.activation_checkpointing == ActivationCheckpointing::none;
  const OffloadOptions offload = training::offload_options(recipe).on(world.device);
  const bool in_memory = offload.parameters == Placement::device &&
                         offload.gradients == Placement::device &&
                         offload.optimizer == Placement::device;
  const StrategyPlan as_is = plan_strategy(recipe, world, recipe.sharding.sharding_strategy);
  Search search(memory, as_is.plan ? as_is.plan->total() : 0);
  search.look(with_strategies(now));
  search.look(with_smaller_batches(now));
  const bool sends = world.device == DeviceType::cuda && !recipe.sharding.activation_offload;
  if (keeps) search.look({with_recomputation(now)});
  if (sends) search.look({with_inputs_on_host(now)});
  if (in_memory) search.look(with_offload(now));
  if (fp32) search.look({with_bf16(now)});
  search.look(with_context_parallel(now));
  // One change was not enough: combine them, one after the other.
  Candidate most = with_strategy(now, Strategy::full_shard);
  const auto add = [&](bool possible, Candidate (*change)(Candidate)) {
    if (!possible || !search.nothing_yet()) return;
    search.look(with_smaller_batches(most));
    search.look(with_strategies(change(now)));
    most = change(std::move(most));
    search.look({most});
  };
  add(keeps, with_recomputation);
  add(sends, with_inputs_on_host);
  add(in_memory, with_all_offloaded);
  add(fp32, with_bf16);
  if (search.nothing_yet()) search.look(with_smaller_batches(most));
  if (search.nothing_yet()) search.look(with_context_parallel(most));
  if (search.nothing_yet()) search.look(with_more_ranks(most));
  return search.found();
}

}  // namespace tessera::planner
