// A plain Hugging Face folder opened for reading: one model.safetensors, or numbered files with an
// index.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/load/weight_decoder.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/state.h"

namespace tessera::checkpoint {

// A tensor of a folder: in a file as it is, or decoded while it is read.
struct StoredWeight {
  const SafetensorsFile* file = nullptr;  // that has its elements
  const TensorEntry* entry = nullptr;     // as readers see it; a decoded one has no place
  std::shared_ptr<const WeightDecoder> decoder = nullptr;

  // Elements [first, first + count) in row-major order, in the entry's dtype. Used by one thread.
  void read(std::int64_t first, std::int64_t count, std::byte* data) const;
};

// The tensors of a folder. Files stay open: there are tens of them at most.
struct HuggingFaceFolder {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, StoredWeight> tensors;
  // For decoded weights: one line for each thing that the user should know, and config.json without
  // its quantization_config.
  std::vector<std::string> notes = {};
  std::optional<std::string> config = {};

  // Refuses a tensor that another file has.
  const SafetensorsFile& add(const std::filesystem::path& path);
};

enum class WeightsRead : std::uint8_t { decoded, as_stored };

// The index is checked against the files. Quantised weights are decoded or refused (quantized.h),
// unless they are asked for as they are.
HuggingFaceFolder open_hugging_face(const std::filesystem::path& folder,
                                    WeightsRead form = WeightsRead::decoded);

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
