// The norms of what linear layers read, over calibration batches.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/layers.h"
#include "trainer/pruning/selection.h"

namespace tessera {

struct WatchedLayer {
  std::string name;  // for messages
  nn::LinearImpl* layer = nullptr;
};

// Collective. Runs `forwards`, which calls the layers' forwards on this rank's batches, and returns
// for each layer the Euclidean norm of each input column over all rows of all ranks. Squares are
// summed in fp64, on a rank in the order of its rows, then in the order of the ranks. Throws
// Error(configuration) for a layer whose forward was never called, and Error(numeric) for a norm
// that is not finite.
std::vector<std::vector<float>> input_norms(std::span<const WatchedLayer> layers,
                                            const std::function<void()>& forwards,
                                            const RankExchange& exchange);

}  // namespace tessera
