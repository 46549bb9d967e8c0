// Folders of models that users name.
#pragma once

#include <string>

namespace tessera::models {

// Error(checkpoint) unless it is a folder. A name of the Hugging Face Hub ("gpt2",
// "org/model") is answered with the command that downloads it: nothing is downloaded here.
void require_model_folder(const std::string& folder);

// What that says, for messages that begin with something else: "gpt2: no such folder; ...".
std::string missing_folder_text(const std::string& folder);

}  // namespace tessera::models
