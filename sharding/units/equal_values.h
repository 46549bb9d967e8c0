// Whether all ranks hold the same values of their parameters, and making it so.
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

// XXH3 of a tensor's bytes; of one on `meta`, of what it will be drawn from; of a planned one, 0.
std::uint64_t checksum_of(const Tensor& tensor);

struct ValueDifference {
  std::size_t index = 0;  // of the checksum
  int rank = 0;           // that has another one than rank 0
};
// Collective; the lists are of one length. Ranks that agree exchange one number.
std::optional<ValueDifference> find_difference(comm::Communicator& world,
                                               const std::vector<std::uint64_t>& checksums);

// Collective. Error(configuration) that names a parameter of the units whose values differ between
// two ranks: they would train a mix of two models.
void compare_initial_values(comm::Communicator& world, const std::vector<UnitPlan>& plan);

// Collective. Every rank's parameters get rank 0's values, one parameter at a time. Where rank 0's
// is on `meta`, so are all; where another rank's is and rank 0's is not, it gets memory on the
// world's device.
void sync_initial_values(comm::Communicator& world, const std::vector<OwnedParameter*>& parameters);

}  // namespace tessera
