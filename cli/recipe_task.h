// What a recipe trains.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "cli/recipe.h"
#include "tasks/task.h"

namespace tessera::cli {

// The task of the recipe, its model drawn from the thread's seed. Where a run is only planned no
// data is read.
std::unique_ptr<tasks::Task> make_task(const Recipe& recipe, bool planned);

// The model's configuration: the recipe's, or a pretrained folder's with the recipe's changes.
nlohmann::json model_configuration(const Recipe& recipe);

}  // namespace tessera::cli
