// A plain Hugging Face folder opened for reading: one model.safetensors, or numbered files with an
// index.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/state.h"

namespace tessera::checkpoint {

// The place of each tensor of the folder. Files stay open: there are tens of them at most.
struct HuggingFaceFolder {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, std::pair<const SafetensorsFile*, const TensorEntry*>> tensors;

  // Refuses a tensor that another file has.
  const SafetensorsFile& add(const std::filesystem::path& path);
};

// The index is checked against the files.
HuggingFaceFolder open_hugging_face(const std::filesystem::path& folder);

// The same, or one .safetensors file.
HuggingFaceFolder open_weights(const std::filesystem::path& source);
// True for a file, or for a folder of this kind that is not a step. A folder without a manifest
// whose name is that of a step, or of a step in progress, is an unfinished or damaged save.
bool has_weights_alone(const std::filesystem::path& source);

// Does the work of load_hugging_face() for an opened folder; `message` makes the text of the error
// about tensors that do not fit.
void fill_from(const HuggingFaceFolder& opened, std::vector<LogicalTensor>& tensors,
               const std::vector<std::string>& ignored, const Aliases& rename,
               const std::function<std::string(const std::string& problems)>& message);

}  // namespace tessera::checkpoint
