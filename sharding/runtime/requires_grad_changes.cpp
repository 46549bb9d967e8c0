#include "sharding/runtime/requires_grad_changes.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "sharding/memory/unit_memory.h"

namespace tessera {

// Only a parameter that was trainable when it was sharded has a place for its gradient.
void RequiresGradChanges::toggle(Unit& unit, const detail::TensorData& tensor, bool busy) {
  const auto& locals = unit.local_parameters();
  std::size_t i = 0;
  while (i < locals.size() && unit.views()[i].impl().get() != &tensor &&
         locals[i].tensor.impl().get() != &tensor) {
    ++i;
  }
  TESSERA_REQUIRE(i < locals.size(), "requires_grad of a view of {}: set it on the parameter",
                  unit_title(unit.name()));
  TESSERA_REQUIRE(unit.layout().slots()[i].spec.trainable,
                  "parameter {} was frozen when its module was sharded, and has no place for a "
                  "gradient: set requires_grad before fully_shard() and turn it off after it where "
                  "it is to be frozen for a while, or unwrap() the ShardedModel and shard again",
                  locals[i].name);
  TESSERA_REQUIRE(!busy,
                  "requires_grad of parameter {} cannot change in the middle of a forward or a "
                  "backward: change it between steps",
                  locals[i].name);
  const bool trains = !tensor.requires_grad;
  Tensor local = locals[i].tensor;
  unit.views()[i].impl()->requires_grad = trains;
  local.impl()->requires_grad = trains;
  local.zero_grad();  // a gradient of before is of no use after
  if (!toggled_) toggled_ = locals[i].name;
}

// A rank that alone has changed something waits here, while the others have nothing to compare and
// go on into their backward: an error ends that, and this rank knows why.
std::vector<std::string> RequiresGradChanges::exchange(const std::string& mine,
                                                       std::uint64_t pass) {
  try {
    return world_.exchange(mine, {pass, 0, comm::Phase::backward});
  } catch (const Error& error) {
    throw Error(error.code(),
                "rank " + std::to_string(world_.rank()) + " changed requires_grad of " + *toggled_ +
                    " and waited for all ranks to compare theirs: change it on all ranks alike, "
                    "before the same backward; " +
                    error.what());
  }
}

// Ranks that train different parameters would add zeros to each other's gradients.
void RequiresGradChanges::compare(std::uint64_t pass) {
  if (!toggled_) return;
  std::string mine;
  std::vector<const std::string*> names;
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->local_parameters()) {
      mine += parameter.tensor.requires_grad() ? '1' : '0';
      names.push_back(&parameter.name);
    }
  }
  const auto all = exchange(mine, pass);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    const auto differs = std::mismatch(mine.begin(), mine.end(), all[rank].begin()).first;
    const auto at = static_cast<std::size_t>(differs - mine.begin());
    fail(ErrorCode::configuration,
         "requires_grad of {} is {} on rank {} and {} on rank {}: change it on all ranks",
         *names.at(at), mine[at] == '1', world_.rank(), mine[at] != '1', rank);
  }
  toggled_.reset();  // ranks that differ are refused again
}

}  // namespace tessera
