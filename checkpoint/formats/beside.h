// Files that lie beside a model's weights: those that belong to the model, and those of other
// programs that a reader of the weights alone would pass over.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

// Error(checkpoint) for a file that cannot be opened or has no bytes, which looks like no format.
// Folders pass.
void require_contents(const std::filesystem::path& path);

// True for names of small files that a conversion takes along with the weights: config.json, the
// tokenizer's files, the model card.
bool belongs_to_model(std::string_view name);

// True if the folder has a file of FSDP's flat parameters for each rank: Accelerate's
// LOCAL_STATE_DICT.
bool has_flat_shards(const std::filesystem::path& folder);
// Error(checkpoint) for such a folder: nothing in it tells the parameters' names and shapes.
void refuse_flat_shards(const std::filesystem::path& folder);

// Error(checkpoint) for a folder with weights of several models, as Accelerate's save_state numbers
// them from the second on: model_1.safetensors, pytorch_model_1.bin, pytorch_model_fsdp_1. Names
// among `used` belong to the model that is read.
void refuse_several_models(const std::filesystem::path& folder,
                           const std::vector<std::string>& used = {});

// The file of an optimizer's state in a folder of weights (Accelerate's optimizer.bin, the
// Trainer's optimizer.pt); empty if there is none.
std::string optimizer_file_in(const std::filesystem::path& folder);
// The note about such a file if its state is not read.
std::string unread_state_note(const std::string& file);
// Notes the optimizers' states in the folder that are not among `known`, files and distributed
// checkpoints (optimizer_1.bin, optimizer_0_rank0.bin, optimizer_1/), as unread state.
void note_other_optimizers(Contents& contents, const std::filesystem::path& folder,
                           const std::vector<std::string>& known);

// Notes the files of weights in a folder that are not among `used`, the files that were read:
// pytorch_model.bin beside model.safetensors, tf_model.h5, a GGUF file. They may be the same model
// in another form, or another one. `any_safetensors`: also files with other names than a model's.
void note_other_weights(Contents& contents, const std::filesystem::path& folder,
                        const std::vector<std::string>& used, bool any_safetensors = false);

}  // namespace tessera::checkpoint::formats
