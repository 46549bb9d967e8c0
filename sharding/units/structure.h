// What a rank is about to shard, and that all ranks are about to shard the same. A difference would
// show much later: as another call in the middle of a step, or as garbage.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"
#include "sharding/policy/wrap_policy.h"

namespace tessera {

// A unit before anything is made for it.
struct UnitPlan {
  UnitModule unit;
  std::vector<ParameterSpec> specs;  // of unit.parameters
};
std::vector<UnitPlan> plan_units(nn::Module& root, const ShardingOptions& options,
                                 const IgnoredModules& ignored);

// Collective. The first thing in which the ranks' options or units differ is an
// Error(configuration) that names both sides.
void compare_structures(comm::Communicator& world, const ShardingOptions& options,
                        const std::vector<UnitPlan>& plan, const IgnoredModules& ignored);

}  // namespace tessera
