// Random options of the schedule: the bits are always those of NO_SHARD, the plan matches the
// memory and traffic of the ranks, and steps allocate nothing.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "sharding/plan/planned_toy.h"
#include "sharding/policy/reshard_policy.h"
#include "sharding/strategies/strategy_bits.h"

namespace tessera {
namespace {

using testing::exact_kinds;
using testing::TrainingCase;

struct Draw {
  int world = 1;
  ShardingOptions options;
  TrainingCase what;
};

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : generator_(seed) {}
  bool coin() { return below(2) == 0; }
  int below(int n) {  // the same on every library, as std::uniform_int_distribution is not
    return static_cast<int>(generator_() % static_cast<std::uint32_t>(n));
  }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }
  int divisor_of(int n) {
    std::vector<int> divisors;
    for (int d = 1; d <= n; ++d) {
      if (n % d == 0) divisors.push_back(d);
    }
    return one_of(divisors);
  }
  ReshardAfterForward reshard(int shards) {
    if (below(3) > 0) return divisor_of(shards);
    return coin();
  }

 private:
  std::mt19937 generator_;
};

std::vector<std::string> names_of_units(const WrapPolicy& wrap) {
  const DeviceGuard deferred(Device::meta());
  testing::ToyTransformer net;
  std::vector<std::string> names;
  for (const UnitModule& unit : choose_units(net, wrap)) names.push_back(unit.name);
  return names;
}

void draw_reshard(Dice& dice, ShardingOptions& options, int world) {
  const int shards = shards_of(options, world);
  const std::vector<std::string> names = names_of_units(options.wrap);
  if (options.strategy != Strategy::no_shard) {
    if (dice.below(4) > 0) options.reshard_after_forward = dice.reshard(shards);
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (dice.below(4) == 0) options.reshard_after_forward_of[names[i]] = dice.reshard(shards);
    }
  }
  bool something_stays = names.size() == 1;
  for (std::size_t i = 1; i < names.size(); ++i) {
    something_stays =
        something_stays || reshard_of(options, names[i], shards).gathered != Gathered::per_pass;
  }
  options.reshard_after_backward = !something_stays || dice.coin();
}

void draw_precision(Dice& dice, ShardingOptions& options) {
  if (dice.coin()) {
    options.gather_wire = dice.one_of(
        std::vector<WireFormat>{WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3});
  }
  if (dice.coin()) options.reduce_wire = dice.coin() ? WireFormat::int8 : WireFormat::bf16;
  if (options.param_dtype && dice.coin()) options.keep_fp32 = {"LayerNorm"};
}

Draw draw(std::uint32_t seed) {
  Dice dice(seed);
  Draw drawn;
  drawn.world = dice.one_of<int>({1, 2, 3, 4, 4, 6});
  ShardingOptions& options = drawn.options;
  options.strategy = dice.one_of(
      std::vector<Strategy>{Strategy::full_shard, Strategy::full_shard, Strategy::hybrid_shard,
                            Strategy::hybrid_shard_zero2, Strategy::shard_grad_op,
                            Strategy::shard_optimizer, Strategy::no_shard});
  if (row_of(options.strategy).shards == ShardGroup::group)
    options.group_size = dice.divisor_of(drawn.world);
  options.wrap = dice.one_of(std::vector<WrapPolicy>{
      WrapPolicy::transformer({"ToyBlock"}), WrapPolicy::transformer({"ToyBlock"}),
      WrapPolicy::none(), WrapPolicy::list({"blocks.1"}),
      WrapPolicy::list({"blocks.0", "blocks.1", "blocks.1.attention", "blocks.1.in"})});
  draw_reshard(dice, options, drawn.world);
  options.limit_all_gathers = 1 + dice.below(4);
  options.forward_prefetch = dice.coin();
  options.backward_prefetch = dice.one_of(std::vector<BackwardPrefetch>{
      BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post});
  options.param_dtype =
      dice.one_of(std::vector<std::optional<DType>>{std::nullopt, bfloat16, float16});
  if (names_of_units(options.wrap).size() > 1) {
    options.activation_checkpointing = dice.one_of(std::vector<ActivationCheckpointing>{
        ActivationCheckpointing::none, ActivationCheckpointing::none, ActivationCheckpointing::full,
        ActivationCheckpointing::selective});
  }
  drawn.what = {.name = "seed " + std::to_string(seed),
                .dropout = dice.coin() ? 0.1 : 0.0,
                .micro_batches = 1 + dice.below(3),
                .no_sync = dice.coin(),
                .max_norm = 1e-3};
  draw_precision(dice, options);
  return drawn;
}

std::string text_of(const ReshardAfterForward& reshard) {
  const int* const ranks = std::get_if<int>(&reshard);
  return ranks != nullptr ? std::to_string(*ranks) : std::get<bool>(reshard) ? "true" : "false";
}

std::string describe(const Draw& drawn) {
  const ShardingOptions& options = drawn.options;
  std::string text = drawn.what.name + ": " + testing::describe(options) + " on " +
                     std::to_string(drawn.world) + ", limit " +
                     std::to_string(options.limit_all_gathers);
  if (options.reshard_after_forward) text += ", reshard " + text_of(*options.reshard_after_forward);
  for (const auto& [unit, reshard] : options.reshard_after_forward_of)
    text += ", " + unit + " " + text_of(reshard);
  text += ", gathered as " + std::string(name_of(options.gather_wire)) + ", reduced as " +
          std::string(name_of(options.reduce_wire));
  if (!options.keep_fp32.empty()) text += ", norms kept";
  if (!options.reshard_after_backward) text += ", kept after backward";
  return text + ", " + std::to_string(drawn.what.micro_batches) + " batches" +
         (drawn.what.no_sync ? ", no_sync" : "");
}

class RandomSchedule : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedule, ::testing::Range(0u, 48u));

// The bits of FULL_SHARD where gathered parameters are rounded: NO_SHARD gathers nothing.
TEST_P(RandomSchedule, HasTheBitsOfNoShard) {
  const Draw drawn = draw(GetParam());
  const bool rounds =
      drawn.options.gather_wire != WireFormat::same && shards_of(drawn.options, drawn.world) > 1;
  ShardingOptions plain = testing::toy_options(rounds ? Strategy::full_shard : Strategy::no_shard);
  plain.param_dtype = drawn.options.param_dtype;
  plain.keep_fp32 = drawn.options.keep_fp32;
  if (rounds) plain.gather_wire = drawn.options.gather_wire;
  plain.reduce_wire = drawn.options.reduce_wire;
  plain.reduction_group = testing::summation_group(drawn.options, drawn.world);
  EXPECT_TRUE(testing::same_bits(testing::train_toy(drawn.world, plain, drawn.what),
                                 testing::train_toy(drawn.world, drawn.options, drawn.what)))
      << describe(drawn);
}

TEST_P(RandomSchedule, IsPlannedToTheByte) {
  const Draw drawn = draw(GetParam());
  const testing::PlannedCase what{.sharding = drawn.options,
                                  .micro_batches = drawn.what.micro_batches,
                                  .sync_each_batch = !drawn.what.no_sync};
  const MemoryPlan planned = testing::plan_toy(drawn.world, what);
  const testing::Measured measured = testing::run_toy(drawn.world, what).front();
  for (const MemoryKind kind : exact_kinds) {
    EXPECT_EQ(planned.memory.of(kind), measured.memory.of(kind))
        << describe(drawn) << ", " << name_of(kind);
  }
  EXPECT_EQ(planned.total(), measured.memory.total()) << describe(drawn);
  EXPECT_EQ(planned.moved_bytes(), measured.moved) << describe(drawn);
}

}  // namespace
}  // namespace tessera
