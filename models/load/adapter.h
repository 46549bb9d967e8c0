// LoRA adapters on this library's models, and PEFT's folders of them. engine/nn/lora.h finds the
// layers and defines the computation of a layer with an adapter.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load/peft.h"
#include "checkpoint/state/state.h"
#include "engine/nn/lora.h"
#include "models/model.h"

namespace tessera::models {

// Freezes the model (freeze(), engine/nn/lora.h) but options.modules_to_save, and adds the adapters
// that the options select. In a sentence encoder, layers and modules are the transformer's.
void add_lora(Model& model, const LoraOptions& options, std::optional<DType> storage = {},
              const std::vector<std::string>& wide_classes = {});

// The same for the adapters of a PEFT folder; returns its options.
LoraOptions add_lora_of(const std::string& folder, Model& model, std::optional<DType> storage = {},
                        const std::vector<std::string>& wide_classes = {});

// Checks options.modules_to_save for this model, as check_modules_to_save() (engine/nn/lora.h).
void check_modules_to_save(Model& model, const LoraOptions& options);

LoraOptions lora_options(const checkpoint::PeftConfig& config);
// The contents of adapter_config.json for the model's adapters over the base in the folder `base`.
// If other layers have adapters than the options select, target_modules has the full names of these
// layers.
checkpoint::PeftConfig peft_config(const Model& model, const LoraOptions& options,
                                   const std::string& base);

// From tensors under the model's names: those of the adapters and of the modules that are saved
// with them (LoraOptions::modules_to_save), or all others.
std::vector<checkpoint::LogicalTensor> lora_tensors(
    const Model& model, const std::vector<std::string>& modules_to_save,
    const std::vector<checkpoint::LogicalTensor>& tensors);
std::vector<checkpoint::LogicalTensor> base_tensors(
    const Model& model, const std::vector<std::string>& modules_to_save,
    const std::vector<checkpoint::LogicalTensor>& tensors);

// Fills the pieces of lora_tensors() from a PEFT folder, whose config has the modules.
void load_lora(const std::string& folder, const Model& model,
               const std::vector<checkpoint::LogicalTensor>& tensors);

// For the model of this config.json: the names that its linear layers' weights may have in files,
// and true for those that are [in, out]. Empty for a model that is not supported.
std::map<std::string, bool> weights_in_out(const std::string& config);

// The folders of a model's weights: one folder, or those of an adapter and its base.
struct WeightFolders {
  std::string base;
  std::string adapter;  // empty: `base` has everything
};
// The base of a PEFT folder is `base` or, if that is empty, the one in its adapter_config.json.
// Throws an Error with the way out if that is not a folder here, or if `base` is given for a folder
// that needs none.
WeightFolders find_weights(const std::string& folder, const std::string& base = {});

}  // namespace tessera::models
