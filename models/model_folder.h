// Folders of models that the user names.
#pragma once

#include <string>

namespace tessera::models {

// Error(checkpoint) unless it is a folder. For a name of the Hugging Face Hub ("gpt2", "org/model")
// the message has the command that downloads it: Tessera does not download.
void require_model_folder(const std::string& folder);

// The text of that error, for messages that begin with something else: "gpt2: no such folder; ...".
std::string missing_folder_text(const std::string& folder);

}  // namespace tessera::models
