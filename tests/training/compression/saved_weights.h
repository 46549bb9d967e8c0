// The weights in a saved folder, and their zeros.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
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

// Makes all values of tensors with names that end so NaN, in a file of fp32 weights without
// checksums.
inline void spoil_weights(const std::string& path, const std::string& ending) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const nlohmann::json tensors = nlohmann::json::parse(header);
  std::size_t spoiled = 0;
  for (const auto& [name, tensor] : tensors.items()) {
    if (!name.ends_with(ending)) continue;
    const auto begin = tensor.at("data_offsets").at(0).get<std::uint64_t>();
    const auto end = tensor.at("data_offsets").at(1).get<std::uint64_t>();
    const std::vector<float> values((end - begin) / sizeof(float),
                                    std::numeric_limits<float>::quiet_NaN());
    file.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + begin));
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(end - begin));
    ++spoiled;
  }
  ASSERT_TRUE(file.good() && spoiled > 0) << path;
}

}  // namespace tessera::testing
