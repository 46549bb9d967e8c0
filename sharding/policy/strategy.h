// The sharding strategies, as rows of a table. The runtime knows nothing of a strategy except its
// row.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Strategy : std::uint8_t {
  no_shard,            // all state whole on every rank: data parallel
  shard_optimizer,     // ZeRO-1
  shard_grad_op,       // ZeRO-2
  full_shard,          // ZeRO-3
  hybrid_shard,        // FULL_SHARD inside a group, replicated across groups
  hybrid_shard_zero2,  // SHARD_GRAD_OP inside a group, replicated across groups
};

// The ranks that hold one copy together.
enum class ShardGroup : std::uint8_t { self, group, world };
// How long gathered parameters stay.
enum class Gathered : std::uint8_t {
  per_pass,        // from a forward to its end, and again for the backward
  until_backward,  // from the forward until the unit's backward is done
  until_step,      // until the optimizer changes them
};
// When gradients are reduced.
enum class ReduceAt : std::uint8_t { unit_backward, end_of_backward };

struct StrategyRow {
  Strategy strategy;
  std::string_view name;  // Accelerate's and torch's name
  ShardGroup shards;
  Gathered gathered;
  ReduceAt reduce;
};

inline constexpr StrategyRow strategy_table[] = {
    {Strategy::no_shard, "NO_SHARD", ShardGroup::self, Gathered::until_step,
     ReduceAt::unit_backward},
    {Strategy::shard_optimizer, "SHARD_OPTIMIZER", ShardGroup::world, Gathered::until_step,
     ReduceAt::end_of_backward},
    {Strategy::shard_grad_op, "SHARD_GRAD_OP", ShardGroup::world, Gathered::until_backward,
     ReduceAt::unit_backward},
    {Strategy::full_shard, "FULL_SHARD", ShardGroup::world, Gathered::per_pass,
     ReduceAt::unit_backward},
    {Strategy::hybrid_shard, "HYBRID_SHARD", ShardGroup::group, Gathered::per_pass,
     ReduceAt::unit_backward},
    {Strategy::hybrid_shard_zero2, "HYBRID_SHARD_ZERO2", ShardGroup::group,
     Gathered::until_backward, ReduceAt::unit_backward},
};

constexpr const StrategyRow& row_of(Strategy strategy) {
  return strategy_table[static_cast<std::size_t>(strategy)];
}
constexpr std::string_view name_of(Strategy strategy) {
  return row_of(strategy).name;
}

}  // namespace tessera
