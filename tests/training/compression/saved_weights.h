// The weights in a saved folder, and their zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/load/hugging_face.h"

namespace tessera::testing {

struct SavedWeight {
  std::vector<std::uint64_t> shape;
  std::vector<float> values;
};

inline std::map<std::string, SavedWeight> weights_in(const std::string& folder) {
  const checkpoint::HuggingFaceFolder opened = checkpoint::open_hugging_face(folder);
  std::map<std::string, SavedWeight> weights;
  for (const auto& [name, place] : opened.tensors) {
    SavedWeight& weight = weights[name];
    std::uint64_t elements = 1;
    for (const auto size : place.entry->shape) {
      weight.shape.push_back(static_cast<std::uint64_t>(size));
      elements *= static_cast<std::uint64_t>(size);
    }
    weight.values.resize(elements);
    place.read(0, static_cast<std::int64_t>(elements),
               reinterpret_cast<std::byte*>(weight.values.data()));
  }
  return weights;
}

// The linear layers of GPT-2, without the head.
inline bool is_pruned_weight(const std::string& name) {
  return name.find(".h.") != std::string::npos && name.find(".c_") != std::string::npos &&
         name.ends_with(".weight");
}

inline std::size_t zeros_of(const SavedWeight& weight) {
  return static_cast<std::size_t>(std::count(weight.values.begin(), weight.values.end(), 0.0F));
}

}  // namespace tessera::testing
