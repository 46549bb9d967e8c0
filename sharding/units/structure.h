// The units that a rank is about to shard, and the check that all ranks shard the same. A
// difference would appear much later: as another call in the middle of a step, or as garbage.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"
#include "sharding/policy/wrap_policy.h"

namespace tessera {

// A unit before any of its memory exists.
struct UnitPlan {
  UnitModule unit;
  std::vector<ParameterSpec> specs;  // of unit.parameters
};
std::vector<UnitPlan> plan_units(nn::Module& root, const ShardingOptions& options,
                                 const IgnoredModules& ignored);

// The first line in which rank 0's text and another rank's differ.
struct LineDifference {
  std::size_t rank = 0;
  std::string first, other;  // the line of rank 0, and that of `rank`
};
// Collective. Compares texts that have one value on each line. Ranks that agree exchange a digest.
std::optional<LineDifference> find_different_line(comm::Communicator& world,
                                                  const std::string& mine);

// Collective. Throws Error(configuration) that names both sides of the first difference between the
// ranks' options, units or buffers (describe_buffers()).
void compare_structures(comm::Communicator& world, const ShardingOptions& options,
                        const std::vector<UnitPlan>& plan, const IgnoredModules& ignored,
                        const std::string& buffers);

}  // namespace tessera
