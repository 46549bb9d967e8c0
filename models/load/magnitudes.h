// The first magnitudes of DoRA in a model that is sharded.
#pragma once

#include "engine/nn/module.h"
#include "sharding/fully_shard.h"

namespace tessera::models {

// Collective. Sets the magnitude of each layer with DoRA (LoraOptions::dora) in `module`, which
// `sharded` shards, to the norms of the rows of its weight with its adapter, as PEFT begins. Call
// it when the frozen weights are there and the magnitudes are not: after the weights of a module
// that was built on `meta` or that had other weights when it got its adapters have been loaded.
// Gathers the units with such layers one by one. Each layer computes its norms from the gathered
// weight as its forward does, so the bits do not depend on strategy or world, and the model first
// computes what it did without adapters.
void begin_magnitudes(ShardedModel& sharded, nn::Module& module);

}  // namespace tessera::models
