// The files that go with a model's weights, and what a folder that is replaced may hold.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// True for a module's folder name as Sentence Transformers forms it: "1_Pooling".
bool is_module_folder(std::string_view name);
// True for the small files of a model that Tessera knows: config.json, tokenizer.json,
// modules.json, and in a module's folder config.json.
bool is_model_file(std::string_view name);
// True for "<stem>.safetensors", for numbered files and those of ranks, for their index, and for
// model.safetensors in a module's folder.
bool is_weights_file(std::string_view name, std::string_view stem);

// The files below a folder that `known` does not know, the first few. Names are as in a manifest:
// "config.json", "1_Pooling/config.json".
std::vector<std::string> unknown_files(const std::string& folder,
                                       const std::function<bool(const std::string& name)>& known);

// Files of a Hugging Face folder that belong to a model besides weights and config.json: its
// tokenizer and generation settings, by name.
struct ModelFiles {
  std::map<std::string, std::string> contents;
  std::map<std::string, mode_t> modes;  // as SaveOptions::file_modes; those of config.json too
};
// Refuses a link that leaves the folder (open_member of checkpoint/io/file.h).
ModelFiles read_model_files(const std::string& folder);

}  // namespace tessera::checkpoint
