// The scalars that a checkpoint stores for an optimizer: how many steps each parameter has taken,
// numbers that change with these steps, and the groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/sharded_state.h"
#include "engine/optim/optimizer.h"
#include "sharding/fully_shard.h"

namespace tessera::checkpoint {

// The parameter's name in a checkpoint; empty: the checkpoint does not contain it.
std::string name_in_state(const StateNames& names, const std::string& name, const Tensor& local);

// The places that the model's parameters have in the optimizer, which may be without some of them.
std::vector<std::optional<std::size_t>> places_in(const optim::Optimizer& optimizer,
                                                  const std::vector<ShardedParameter>& parameters);

void describe_counts(const optim::Optimizer& optimizer, const StateNames& names, Scalars& scalars);

// The scalars that a load gives to the optimizer, in the order of its parameters.
struct OptimizerCounts {
  std::vector<std::int64_t> steps;
  std::vector<std::vector<double>> numbers;
  std::vector<optim::Optimizer::LoadedParts> loaded;

  void give_to(optim::Optimizer& optimizer) &&;
};

// Computes these scalars before tensors are filled. Throws if the optimizer cannot go on from the
// checkpoint.
OptimizerCounts counts_after(const Scalars& scalars, const Fit& fit, const ShardedModel& model,
                             const optim::Optimizer& optimizer, const LoadOptions& options);

}  // namespace tessera::checkpoint
