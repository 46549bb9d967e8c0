// From model.pretrained to one folder.
#include "training/pretrained_folder.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/print.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/load/int8.h"
#include "checkpoint/load/peft.h"
#include "checkpoint/steps/lineage.h"
#include "models/config/config_file.h"
#include "models/model_folder.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;

std::string folder_of_plan(const std::string& folder) {
  if (fs::exists(fs::path(folder) / "config.json") || checkpoint::is_peft_folder(folder)) {
    return folder;
  }
  const checkpoint::StepListing listing = checkpoint::list_committed(folder);
  return listing.steps.empty() ? folder : listing.steps.front().path.string();
}

// The recipe may repeat what the folder's config.json says.
void check_architecture(const Recipe& recipe, const std::string& folder) {
  const std::string key = "model.architecture";
  if (!recipe.given.contains(key)) return;
  const auto config = models::read_optional_config(folder, "config.json");
  if (!config || !config->contains("model_type")) return;
  const nlohmann::json& type = config->at("model_type");
  TESSERA_CHECK(type == recipe.model.architecture, ErrorCode::configuration,
                "{}: {} is {}, and the config.json of model.pretrained {} has model_type {}; leave "
                "one out",
                where(recipe, key), key, recipe.model.architecture, folder,
                type.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

fs::path find_model_folder(const std::string& folder, comm::Communicator& ranks,
                           const std::string& key) {
  models::require_model_folder(folder);
  fs::path path = folder;
  if (fs::exists(path / "config.json") || checkpoint::is_peft_folder(folder)) return path;
  constexpr auto weights = checkpoint::LoadParts::model_only;
  if (const auto found = checkpoint::find_latest(ranks, path, {.named_by = key}, weights)) {
    for (const std::string& reason : found->skipped) {
      if (ranks.rank() == 0) print_err("tessera: passed over {}\n", reason);
    }
    return found->path;
  }
  fail(ErrorCode::checkpoint,
       "{}: no config.json there; name a folder that sentence-transformers, transformers or "
       "tessera train saved",
       folder);
}

std::string model_folder(const std::string& folder, const std::string& key,
                         const Context& context) {
  models::require_model_folder(folder);
  return context.device().is_planned()
             ? folder_of_plan(folder)
             : find_model_folder(folder, context.communicator(), key).string();
}

Recipe with_model_folder(const Recipe& recipe, const Context& context) {
  if (!recipe.model.pretrained) return recipe;
  Recipe found = recipe;
  std::string& folder = *found.model.pretrained;
  try {
    folder = model_folder(folder, "model.pretrained", context);
    check_architecture(recipe, folder);
    checkpoint::refuse_int8_training(folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::checkpoint) throw;
    throw Error(error.code(), fmt::format("{}: model.pretrained: {}",
                                          where(recipe, "model.pretrained"), error.what()));
  }
  return found;
}

}  // namespace tessera::training
