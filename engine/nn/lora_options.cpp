#include "engine/nn/lora_options.h"

#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "engine/nn/name_pattern.h"

namespace tessera::nn {
namespace {

// PEFT takes the first pattern that matches. JSON's objects have no order, so all that match have
// to agree.
template <class T>
std::optional<T> value_of(const std::vector<std::pair<std::string, T>>& patterns,
                          const std::string& layer, const char* what) {
  std::optional<T> found;
  for (const auto& [pattern, value] : patterns) {
    if (!NamePattern("(.*\\.)?(" + pattern + ")", what).matches(layer)) continue;
    TESSERA_CHECK(!found || *found == value, ErrorCode::configuration,
                  "{} give {} the values {} and {}; let one pattern match it", what, layer, *found,
                  value);
    found = value;
  }
  return found;
}

}  // namespace

LoraOptions LoraOptions::of_layer(const std::string& layer) const {
  LoraOptions options = *this;
  options.rank = value_of(rank_pattern, layer, "LoRA: the patterns of ranks").value_or(rank);
  options.alpha = value_of(alpha_pattern, layer, "LoRA: the patterns of alphas").value_or(alpha);
  TESSERA_CHECK(options.can_scale(), ErrorCode::configuration,
                "LoRA: {} has alpha {}, too much to multiply by", layer, options.alpha);
  return options;
}

double LoraOptions::scaling() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

bool LoraOptions::can_scale() const {
  return std::abs(scaling()) <= static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace tessera::nn
