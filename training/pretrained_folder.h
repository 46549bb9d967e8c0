// What model.pretrained names.
#pragma once

#include <filesystem>
#include <string>

#include "sharding/context/context.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// The recipe with the folder of a model in model.pretrained: of a folder of steps the newest that
// is whole. Error(checkpoint) where it is no folder, or holds neither. Collective; on a planned
// device, whose ranks are imagined, the step that was saved last, unread.
Recipe with_model_folder(const Recipe& recipe, const Context& context);

// The folder itself, or, of a folder of steps, the newest that is whole. Error(checkpoint) with the
// way out where neither is a model's. Collective.
std::filesystem::path find_model_folder(const std::string& folder, comm::Communicator& ranks);

}  // namespace tessera::cli
