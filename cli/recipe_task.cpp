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

namespace {

std::vector<std::string> files_of(const std::vector<DataSetRecipe>& sets) {
  std::vector<std::string> files;
  for (const DataSetRecipe& set : sets) {
    files.insert(files.end(), set.files.begin(), set.files.end());
  }
  return files;
}

std::unique_ptr<tasks::Task> next_token_task(const Recipe& recipe, bool planned) {
  tasks::NextTokenOptions options;
  options.reads_data = !planned;
  if (!planned) {
    options.train = tasks::expand_files(files_of(recipe.data.train));
    const auto valid = tasks::expand_files(files_of(recipe.data.valid));
    TESSERA_CHECK(valid.size() <= 1, ErrorCode::configuration,
                  "{}: data.valid is {} files; one is "
                  "evaluated on",
                  where(recipe, "data.valid"), valid.size());
    if (!valid.empty()) options.valid = valid.front();
  }
  options.tokenizer = make_tokenizer(recipe.data.tokenizer.value_or("bytes"));
  options.seq_len = recipe.model.seq_len;
  options.shuffle = recipe.data.shuffle;
  options.seed = recipe.train.seed;
  options.eval_batches = recipe.train.eval_batches;
  options.model = model_configuration(recipe);
  options.model_source = recipe.model.pretrained.value_or(recipe.source);
  options.source = recipe.source;
  options.train_place = where(recipe, "data.train");
  options.seq_len_place = where(recipe, "model.seq_len");
  return tasks::make_next_token_task(options);
}

}  // namespace

std::unique_ptr<tasks::Task> make_task(const Recipe& recipe, bool planned) {
  return next_token_task(recipe, planned);
}

}  // namespace tessera::cli
