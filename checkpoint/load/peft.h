// PEFT's folders of adapters: adapter_config.json and adapter_model.safetensors, with LoRA on
// linear layers. Other parts of PEFT are refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state/state.h"

namespace tessera::checkpoint {

struct HuggingFaceFolder;

inline constexpr const char* peft_config_file = "adapter_config.json";
inline constexpr const char* peft_tensors_file = "adapter_model.safetensors";
// Prefix of the layer's own name in the file.
inline constexpr std::string_view peft_prefix = "base_model.model.";

struct PeftConfig {
  std::int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rslora = false;
  bool fan_in_fan_out = false;  // of GPT-2's layers, whose weights are [in, out]
  std::vector<std::string> target_modules = {};
  std::string target_pattern = {};  // instead of the list
  std::string base = {};            // the folder or the Hub's name of the model under the adapter
  std::string task_type = {};       // "CAUSAL_LM", "FEATURE_EXTRACTION", or empty

  [[nodiscard]] double scaling() const;
};

// True if the folder has an adapter_config.json.
bool is_peft_folder(const std::string& folder);

// The config's text. Error(configuration) that names file and key for anything but LoRA on linear
// layers.
std::string to_text(const PeftConfig& config);
PeftConfig read_peft_config(const std::string& folder);

// The folder's tensors. A step folder's files are verified first.
HuggingFaceFolder open_peft(const std::string& folder);
struct PeftTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};
// Error(checkpoint) for a tensor that does not belong to an adapter.
std::vector<PeftTensor> list_peft_tensors(const HuggingFaceFolder& opened);

// Fills pieces from the folder's tensors. `names` returns the names in the folder that a logical
// name may have. Missing, unexpected and mis-shaped tensors are one Error(checkpoint) that lists
// them.
void load_peft_tensors(const std::string& folder, std::vector<LogicalTensor>& tensors,
                       const std::function<std::vector<std::string>(const std::string&)>& names);

// For SaveOptions::names: a checkpoint of a model with adapters holds the adapters, under PEFT's
// names, and other trained parameters, but not the base.
std::string peft_name_of(const std::string& name, bool trained);

}  // namespace tessera::checkpoint
