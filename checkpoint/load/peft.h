// PEFT's folders of adapters: adapter_config.json and adapter_model.safetensors, with LoRA on
// linear layers. Other parts of PEFT are refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
  bool dora = false;            // each adapter has a magnitude, LoraOptions::dora
  bool fan_in_fan_out = false;  // of GPT-2's layers, whose weights are [in, out]
  std::vector<std::string> target_modules = {};
  std::string target_pattern = {};  // instead of the list
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<std::string> modules_to_save = {};  // LoraOptions has their meaning
  std::string base = {};       // the folder or the Hub's name of the model under the adapter
  std::string task_type = {};  // "CAUSAL_LM", "FEATURE_EXTRACTION", or empty

  // The rank and the factor of the adapter on a layer, which has this name in the file.
  [[nodiscard]] std::int64_t rank_of(const std::string& layer) const;
  [[nodiscard]] double scaling_of(const std::string& layer) const;
};

// True if the folder has an adapter_config.json.
bool is_peft_folder(const std::string& folder);

// In the scalars of a step of adapters: the format of the frozen weights under them (QLoRA), if
// these were quantised.
inline constexpr const char* base_format_scalar = "adapter/base_format";
// The format of the adapter's base, from the adapter folder of a step. Empty if the base is not
// quantized, and for a folder that PEFT wrote: its config has no such key.
std::optional<QuantizedFormat> quantized_base_of(const std::string& folder);

// The config's text. Error(configuration) that names file and key for anything but LoRA on linear
// layers.
std::string to_text(const PeftConfig& config);
PeftConfig read_peft_config(const std::string& folder);

// The folder's tensors. A step folder's files are verified first.
HuggingFaceFolder open_peft(const std::string& folder);
struct PeftTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  // `other`: a parameter of a module that is saved whole.
  enum class Kind : std::uint8_t { factor_a, factor_b, magnitude, other };
  Kind kind = Kind::other;
};
// Error(checkpoint) for a tensor that belongs neither to an adapter nor to one of the config's
// modules_to_save, for a folder without adapters, and if adapters have magnitudes and the config no
// use_dora, or the other way round.
std::vector<PeftTensor> list_peft_tensors(const HuggingFaceFolder& opened,
                                          const PeftConfig& config);
// The layer of an adapter's tensor, without PEFT's prefix.
std::string layer_of(const PeftTensor& tensor);

// Fills pieces from the folder's tensors. `names` returns the names in the folder that a logical
// name may have. Missing, unexpected and mis-shaped tensors are one Error(checkpoint) that lists
// them.
void load_peft_tensors(const std::string& folder, std::vector<LogicalTensor>& tensors,
                       const std::function<std::vector<std::string>(const std::string&)>& names);

// For SaveOptions::names: a checkpoint of a model with adapters holds the adapters, under PEFT's
// names, and other trained parameters, but not the base. Parameters of LoraOptions::modules_to_save
// have PEFT's names, too.
std::function<std::string(const std::string& name, bool trained)> peft_names(
    std::vector<std::string> modules_to_save);

}  // namespace tessera::checkpoint
