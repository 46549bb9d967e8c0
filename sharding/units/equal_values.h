// Checks that all ranks hold the same values of their parameters, and copies rank 0's values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "engine/tensor.h"
#include "sharding/policy/module_tree.h"
#include "sharding/units/structure.h"

namespace tessera {

// XXH3 of a tensor's bytes; of a tensor on `meta`, of the source of its values; of a planned one,
// 0.
std::uint64_t checksum_of(const Tensor& tensor);

struct ValueDifference {
  std::size_t index = 0;  // of the checksum
  int rank = 0;           // whose checksum differs from rank 0's
};
// Collective; the lists have the same length. Ranks that agree exchange one number.
std::optional<ValueDifference> find_difference(comm::Communicator& world,
                                               const std::vector<std::uint64_t>& checksums);

// Collective. Throws Error(configuration) that names a parameter of the units whose values differ
// between two ranks: they would train a mix of two models.
void compare_initial_values(comm::Communicator& world, const std::vector<UnitPlan>& plan);

// Collective. Every rank's parameters get rank 0's values, one parameter at a time. A parameter
// that is on `meta` on rank 0 goes to `meta` on all ranks; one that is on `meta` only on another
// rank gets memory on the world's device there.
void sync_initial_values(comm::Communicator& world, const std::vector<OwnedParameter*>& parameters);

}  // namespace tessera
