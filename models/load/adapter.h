// LoRA adapters on this library's models, and PEFT's folders of them. Which layers there are, and
// how a layer computes with an adapter, is engine/nn/lora.h's.
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

// Freezes the model (freeze(), engine/nn/lora.h), and adds the adapters that the options mean. Of a
// sentence encoder, layers are the transformer's.
void add_lora(Model& model, const LoraOptions& options, std::optional<DType> storage = {},
              const std::vector<std::string>& wide_classes = {});

// The same where a PEFT folder has adapters; what it says of them comes back.
LoraOptions add_lora_of(const std::string& folder, Model& model, std::optional<DType> storage = {},
                        const std::vector<std::string>& wide_classes = {});

LoraOptions lora_options(const checkpoint::PeftConfig& config);
// adapter_config.json's contents for the model's adapters over the base in the folder `base`. Where
// other layers have adapters than the options mean, target_modules are these layers' whole names.
checkpoint::PeftConfig peft_config(const Model& model, const LoraOptions& options,
                                   const std::string& base);

// Of tensors under the model's names: the adapters', or all others.
std::vector<checkpoint::LogicalTensor> lora_tensors(
    const std::vector<checkpoint::LogicalTensor>& tensors);
std::vector<checkpoint::LogicalTensor> base_tensors(
    const std::vector<checkpoint::LogicalTensor>& tensors);

// Fills the adapters' pieces from a PEFT folder.
void load_lora(const std::string& folder, const Model& model,
               const std::vector<checkpoint::LogicalTensor>& tensors);

// Of the model with this config.json: the names that its linear layers' weights may have in files,
// and whether they lie [in, out]. Nothing for a model that is not built here.
std::map<std::string, bool> weights_in_out(const std::string& config);

// Where a model's weights are: a folder of them all, or an adapter's and its base's.
struct WeightFolders {
  std::string base;
  std::string adapter;  // empty: `base` has everything
};
// Of a PEFT folder the base is `base`, or, where that is empty, what its adapter_config.json names.
// Error(configuration) with the way out where that is no folder here, and where `base` is given for
// a folder that needs none.
WeightFolders find_weights(const std::string& folder, const std::string& base = {});

}  // namespace tessera::models
