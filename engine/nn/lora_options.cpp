#include "engine/nn/lora_options.h"

#include <cmath>
#include <limits>

namespace tessera::nn {

double LoraOptions::scaling() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

bool LoraOptions::can_scale() const {
  return std::abs(scaling()) <= static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace tessera::nn
