// Which rows or columns of a layer's tensors belong to an attention head, and which to a column of
// its feed-forward layer, for the architectures whose names this library knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

// The number of heads and columns that each layer keeps; none: all.
struct NarrowOptions {
  std::optional<std::int64_t> heads = {};  // attention heads
  std::optional<std::int64_t> ffn = {};    // columns of the feed-forward layer
};

// Equal units of the layers of a model: its groups of heads that share a key and a value head, or
// its feed-forward columns.
struct LayerUnits {
  std::int64_t count = 0;  // in the model
  std::int64_t kept = 0;
};

struct NarrowPlan {
  std::int64_t layers = 0;
  LayerUnits groups, columns;  // kept == 0: all are
  std::string config;          // the result's config.json
};

// Reads the text of a model's config.json. Throws Error(configuration) with the reason and the way
// out for a model that the options do not fit: an architecture with other names, heads whose size
// config.json cannot state, experts, as many as the model has or more.
NarrowPlan plan_narrowing(const std::string& config, const NarrowOptions& options);

// The part of a layer's tensor that is divided into units: axis 0 or 1.
struct LayerTensor {
  std::int64_t layer = 0;
  bool heads = false;  // else feed-forward columns
  int axis = 0;
};
// None if the tensor of this name belongs to no unit.
std::optional<LayerTensor> find_layer_tensor(std::string_view name);

// The matrices that every layer has in the architecture of this config.json, by the rest of their
// names, as in ".0.mlp.up_proj.weight": for messages about those that are missing.
std::vector<std::string> unit_matrices(const std::string& config, bool heads);

}  // namespace tessera::checkpoint
