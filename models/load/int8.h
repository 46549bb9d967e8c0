// Linear layers that stay 8-bit integers in memory.
#pragma once

#include <string>
#include <vector>

#include "engine/device/device.h"
#include "models/model.h"

namespace tessera::models {

// For a folder whose linear layers are stored as 8-bit integers (checkpoint/load/int8.h), before
// its weights are loaded into a model on `meta`: gives each such layer a weight of integers
// (engine/ops/int8_linear.h). Returns their number. The head and its loss read floating
// weights, so the head is left as it is, and on devices other than CPUs everything is: such weights
// are decoded when they are loaded. Layers in `modules_to_save` of an adapter are left, too: the
// adapter has their weights. So are layers with DoRA, which computes the norms of floating weights.
std::size_t keep_int8_layers(Model& model, const std::string& folder, Device device,
                             const std::vector<std::string>& modules_to_save = {});

}  // namespace tessera::models
