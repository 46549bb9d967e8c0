// What a recipe trains.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tasks/task.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// The task of the recipe, its model drawn from the thread's seed. Where a run is only planned no
// data is read.
std::unique_ptr<tasks::Task> make_task(const Recipe& recipe, bool planned);

// The files of the recipe's tokenizer where it is a folder, by name: a saved model has them beside
// its weights.
std::map<std::string, std::string> tokenizer_files(const Recipe& recipe);

// The adapters of a recipe that trains them: its own, or of model.adapter.
nn::LoraOptions adapter_options(const Recipe& recipe);

// The model's configuration: the recipe's, or a pretrained folder's with the recipe's changes.
nlohmann::json model_configuration(const Recipe& recipe);

}  // namespace tessera::cli
