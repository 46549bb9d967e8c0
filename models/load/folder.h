// A sharded model from and to a folder of Hugging Face, for models that programs train through the
// C++ API.
//
//   const ts::models::ViTConfig config = ts::models::load_vit_config("vit-base");
//   std::unique_ptr<ts::models::ViTForImageClassification> net = ...;  // on `meta`
//   ts::ShardedModel model = ts::fully_shard(*net, context, ...);
//   ts::models::load_pretrained(model, *net, "vit-base");
//   ...
//   ts::models::save_pretrained(model, *net, "fine-tuned");
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/save/export.h"
#include "models/model.h"
#include "sharding/fully_shard.h"

namespace tessera::models {

// Collective. Fills the parameters of `model`, which is `sharded`, from a folder that transformers
// or save_pretrained() wrote, or from a step of a checkpoint. Parameters whose names `keep` selects
// stay as they are, and the folder may have them in any shape or not at all: a new head. Adapters
// (LoRA) stay, too. Other missing, unexpected and mis-shaped tensors are one Error(checkpoint) that
// lists them.
void load_pretrained(const ShardedModel& sharded, const FolderModel& model,
                     const std::string& folder, const checkpoint::NameFilter& keep = {});

// Collective. Writes config.json and the weights as a folder that transformers reads
// (checkpoint::export_model). `options.files` are more files for it, as preprocessor_config.json.
// Error(configuration) for a model with adapters: a folder of transformers has no place for them.
std::vector<std::string> save_pretrained(const ShardedModel& sharded, const FolderModel& model,
                                         const std::string& folder,
                                         checkpoint::ExportOptions options = {});

}  // namespace tessera::models
