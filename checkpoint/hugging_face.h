// A plain Hugging Face folder opened for reading: one model.safetensors, or numbered files with an
// index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace tessera::checkpoint {

inline constexpr const char* hugging_face_file = "model.safetensors";
inline constexpr const char* hugging_face_index = "model.safetensors.index.json";

// Where each tensor of the folder is. Files stay open: there are tens of them at most.
struct HuggingFaceFolder {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, std::pair<const SafetensorsFile*, const TensorEntry*>> tensors;

  // Refuses a tensor that another file has.
  const SafetensorsFile& add(const std::filesystem::path& path);
};

// The index is believed only as far as the files bear it out.
HuggingFaceFolder open_hugging_face(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
