// From a recipe's keys to a task's options.
#include "cli/recipe_task.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tasks/next_token.h"

namespace tessera::cli {
namespace {

nlohmann::json read_folder_config(const std::filesystem::path& path) {
  std::ifstream stream(path);
  TESSERA_CHECK(stream.is_open(), ErrorCode::configuration,
                "{}: cannot be read; a model folder has a config.json", path.string());
  nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
  TESSERA_CHECK(json.is_object(), ErrorCode::configuration, "{}: not a JSON object", path.string());
  return json;
}

}  // namespace

nlohmann::json model_configuration(const Recipe& recipe) {
  nlohmann::json config = recipe.model.config;
  if (recipe.model.pretrained) {
    nlohmann::json folder =
        read_folder_config(std::filesystem::path(*recipe.model.pretrained) / "config.json");
    folder.update(config);
    return folder;
  }
  config["model_type"] = recipe.model.architecture;
  return config;
}

std::unique_ptr<tasks::Task> make_task(const Recipe& recipe, bool planned) {
  tasks::NextTokenOptions options;
  options.train = recipe.data.train;
  options.valid = recipe.data.valid;
  options.tokenizer = make_tokenizer(recipe.data.tokenizer);
  options.seq_len = recipe.model.seq_len;
  options.shuffle = recipe.data.shuffle;
  options.seed = recipe.train.seed;
  options.eval_batches = recipe.train.eval_batches;
  options.reads_data = !planned;
  options.model = model_configuration(recipe);
  options.model_source = recipe.model.pretrained.value_or(recipe.source);
  options.source = recipe.source;
  options.train_place = where(recipe, "data.train");
  options.seq_len_place = where(recipe, "model.seq_len");
  return tasks::make_next_token_task(options);
}

}  // namespace tessera::cli
