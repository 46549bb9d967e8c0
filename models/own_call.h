// Whether layers of a fused product are called one by one.
#pragma once

#include "engine/nn/layers.h"

namespace tessera::models {

// A fused product does not expose what lies between its layers: an adapter needs its layer's input,
// and hooks see both ends of their layer.
inline bool needs_own_call(const nn::Linear& layer) {
  return layer->has_lora() || layer->has_forward_hooks();
}

}  // namespace tessera::models
