// What model.pretrained names.
#pragma once

#include "cli/recipe.h"
#include "sharding/context.h"

namespace tessera::cli {

// The recipe with the folder of a model in model.pretrained: of a folder of steps the newest that
// is whole. Error(checkpoint) where it is no folder, or holds neither. Collective; on a planned
// device, whose ranks are imagined, the step that was saved last, unread.
Recipe with_model_folder(const Recipe& recipe, const Context& context);

}  // namespace tessera::cli
