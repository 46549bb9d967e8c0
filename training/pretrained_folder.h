// Finds the folder that model.pretrained names.
#pragma once

#include <filesystem>
#include <string>

#include "sharding/context/context.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// The recipe with the folder of a model in model.pretrained: if it names a folder of steps, the
// newest complete step. Error(checkpoint) if it is not a folder, or holds neither. Collective. On a
// planned device, whose ranks do not exist, it takes the step that was saved last, unread.
Recipe with_model_folder(const Recipe& recipe, const Context& context);

// The folder itself, or the newest complete step of a folder of steps. Error(checkpoint) with the
// way out if it has no model. Collective. `key` is the recipe's that names the folder.
std::filesystem::path find_model_folder(const std::string& folder, comm::Communicator& ranks,
                                        const std::string& key = "model.pretrained");
// The same for a run or a plan: on a planned device, as with_model_folder().
std::string model_folder(const std::string& folder, const std::string& key, const Context& context);

}  // namespace tessera::training
