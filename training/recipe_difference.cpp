// Comparing two recipes key by key.
#include "training/recipe_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/file.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/steps/lineage.h"
#include "checkpoint/steps/manifest.h"
#include "engine/nn/lora_options.h"
#include "models/registry/registry.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "trainer/pruning/options.h"
#include "training/recipe/fine_tuning.h"

namespace tessera::training {
namespace {

using Json = nlohmann::json;

std::string text_of_value(const Json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// "train.optimizer", or "rope_scaling.factor" of nested objects; null if it does not exist.
Json value_at(const Json& object, const std::string& key) {
  std::string path = "/" + key;
  std::replace(path.begin(), path.end(), '.', '/');
  const Json::json_pointer pointer(path);
  return object.is_object() && object.contains(pointer) ? object.at(pointer) : Json();
}

constexpr std::uint64_t small_json_limit = std::uint64_t{16} << 20;

// Damage is found and reported by the checksums when the step is loaded.
nlohmann::json read_json_or_null(const std::filesystem::path& path) {
  if (!checkpoint::path_exists(path)) return nullptr;
  const std::string text = checkpoint::read_file(path, small_json_limit);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return nullptr;
  return json;
}

bool step_has_pooler(const std::filesystem::path& step) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(step);
  if (manifest.type == checkpoint::StateDictType::full) {
    return checkpoint::open_hugging_face(step).tensors.contains(models::pooler_weight);
  }
  const auto& tensors = manifest.model.tensors;
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const auto& tensor) { return tensor.name == models::pooler_weight; });
}

// The folder of a step itself, the newest step of a folder of steps, or an empty path.
std::filesystem::path newest_step(const std::filesystem::path& path) {
  if (!checkpoint::path_exists(path)) return {};
  if (checkpoint::path_exists(path / "manifest.json")) return path;
  const checkpoint::StepListing listing = checkpoint::list_committed(path);
  return listing.steps.empty() ? std::filesystem::path() : listing.steps.front().path;
}

class Comparison {
 public:
  void compare(const std::string& key, const Json& saved, const Json& own) {
    if (saved != own) differences.push_back({key, text_of_value(saved), text_of_value(own)});
  }
  std::vector<RecipeDifference> differences;
};

void compare_models(const SavedRecipe& saved, const Recipe& recipe, const Json& config,
                    Comparison& comparison) {
  const Json type = value_at(saved.config, "model_type");
  if (!type.is_string()) return;
  comparison.compare("model.architecture", type, value_at(config, "model_type"));
  if (!comparison.differences.empty()) return;
  for (const models::ConfigKey& key : models::architecture_of(config, "config.json").keys()) {
    if (key.role == models::ConfigKey::Role::dropout || key.name == "initializer_range") continue;
    const Json there = value_at(saved.config, key.name);
    const Json here = value_at(config, key.name);
    if (there.is_null() || here.is_null()) continue;  // the value follows from other keys
    std::string name = "model." + key.name;
    // If the length was not given, it follows from another key: report that one.
    const bool follows = !recipe.given.contains(name) && !recipe.model.pretrained;
    if (follows && key.role == models::ConfigKey::Role::positions) name = "model.seq_len";
    comparison.compare(name, there, here);
  }
}

void compare_adapters(const SavedRecipe& saved, const Recipe& recipe, const Json& own,
                      Comparison& comparison) {
  const auto adapts = [](const Json& json) {
    return !value_at(json, "model.lora.target_modules").is_null();
  };
  const auto of_folder = [](const Json& json) {
    return !value_at(json, "model.adapter").is_null();
  };
  // Steps of earlier versions do not have the key. Without it, the format of a run over an
  // adapter's folder is that of the folder, and only the step's scalars have it.
  const std::string base = "model.quantize_base";
  const Json chosen = value_at(saved.recipe, base);
  if (!chosen.is_null() || !of_folder(saved.recipe)) {
    const std::optional<QuantizedFormat> format = quantized_base(recipe);
    comparison.compare(base, chosen.is_null() ? Json("none") : chosen,
                       format ? Json(name_of(*format)) : Json("none"));
  }
  // The settings from an adapter's folder are not in the recipe.
  if (of_folder(saved.recipe) || recipe.model.adapter) return;
  const std::string targets = "model.lora.target_modules";
  comparison.compare(targets, value_at(saved.recipe, targets), value_at(own, targets));
  if (!adapts(saved.recipe) || !adapts(own)) return;
  const nn::LoraOptions defaults;
  const std::pair<std::string, Json> keys[] = {{"model.lora.r", defaults.rank},
                                               {"model.lora.alpha", defaults.alpha},
                                               {"model.lora.use_rslora", defaults.rslora},
                                               {"model.lora.use_dora", defaults.dora},
                                               {"model.lora.rank_pattern", nullptr},
                                               {"model.lora.alpha_pattern", nullptr}};
  for (const auto& [key, fallback] : keys) {
    const auto or_default = [&key = key, &fallback = fallback](const Json& json) {
      const Json value = value_at(json, key);
      return value.is_null() ? fallback : value;
    };
    comparison.compare(key, or_default(saved.recipe), or_default(own));
  }
  const std::string whole = "model.lora.modules_to_save";
  const auto as_set = [&](const Json& json) {
    const Json list = value_at(json, whole);
    std::set<Json> names;
    if (list.is_array()) names.insert(list.begin(), list.end());
    return Json(names);
  };
  comparison.compare(whole, as_set(saved.recipe), as_set(own));
}

bool is_adamw(const Json& optimizer) {
  return optimizer == "adamw" || optimizer == "adamw8bit";
}

void compare_optimizers(const SavedRecipe& saved, const Json& own, Comparison& comparison) {
  for (const char* key : {"train.task", "train.optimizer"}) {
    const Json there = value_at(saved.recipe, key), here = value_at(own, key);
    // Moments of 8 bits and others: the load says how to convert them, if they were not.
    if (is_adamw(there) && is_adamw(here)) continue;
    if (!there.is_null()) comparison.compare(key, there, here);
  }
  if (value_at(own, "train.optimizer") != "sgd") return;
  // Another momentum is another rate; without momentum the optimizer has no state.
  const Json there = value_at(saved.recipe, "train.momentum");
  const Json here = value_at(own, "train.momentum");
  if (there.is_number() && here.is_number() && (there == 0) != (here == 0)) {
    comparison.compare("train.momentum", there, here);
  }
}

// The keys of train.prune, with the values that absent ones have; null without a method.
Json pruning_of(const Json& recipe) {
  const auto given = [&](const std::string& key) { return value_at(recipe, "train.prune." + key); };
  if (given("method").is_null()) return nullptr;
  const PruningOptions defaults;
  Json all{{"method", given("method")}, {"sparsity", defaults.sparsity},
           {"begin", defaults.begin},   {"every", defaults.every},
           {"modules", nullptr},        {"calibration_batches", defaults.calibration_batches}};
  for (auto& [key, value] : all.items()) {
    if (const Json own = given(key); !own.is_null()) value = own;
  }
  all["end"] = given("end").is_null() ? all["begin"] : given("end");
  return all;
}

// The step after which there are zeros: a curve from `begin` to `end` begins with none.
std::int64_t first_zeros(const Json& pruning) {
  const auto at = [&](const char* key) { return pruning[key].get<std::int64_t>(); };
  return std::min(at("begin") == at("end") ? at("begin") : at("begin") + at("every"), at("end"));
}

void compare_pruning(const SavedRecipe& saved, const Json& own, Comparison& comparison) {
  const Json there = pruning_of(saved.recipe), here = pruning_of(own);
  if (there.is_null() || saved.steps < first_zeros(there)) return;  // nothing is chosen yet
  const auto compare = [&](const std::string& key) {
    comparison.compare("train.prune." + key, there[key], here.is_null() ? Json() : here[key]);
  };
  compare("method");
  if (here.is_null()) return;
  compare("begin");
  compare("modules");
  if (here["sparsity"] < there["sparsity"]) compare("sparsity");
}

}  // namespace

std::string describe_step(const std::string& path, bool with_pooler) {
  try {
    const std::filesystem::path step = newest_step(path);
    if (step.empty()) return {};
    const nlohmann::json read{{"step", step.string()},
                              {"steps", checkpoint::read_manifest(step).step},
                              {"pooler", with_pooler && step_has_pooler(step)},
                              {"recipe", read_json_or_null(step / "recipe.json")},
                              {"config", read_json_or_null(step / "config.json")}};
    return read.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const Error& error) {
    if (!checkpoint::is_damage(error)) throw;
    return {};
  }
}

SavedRecipe parse_step_description(const std::string& description) {
  const Json read = Json::parse(description);
  return {read.at("recipe"), read.at("config"), read.at("step").get<std::string>(),
          read.at("pooler").get<bool>(), read.at("steps").get<std::int64_t>()};
}

std::vector<RecipeDifference> decisive_differences(const SavedRecipe& saved, const Recipe& recipe,
                                                   const Json& config) {
  Comparison comparison;
  compare_models(saved, recipe, config, comparison);
  if (!saved.recipe.is_object()) return comparison.differences;
  const Json own = to_json(recipe);
  compare_adapters(saved, recipe, own, comparison);
  compare_optimizers(saved, own, comparison);
  compare_pruning(saved, own, comparison);
  return comparison.differences;
}

std::vector<RecipeDifference> allowed_changes(const SavedRecipe& saved, const Recipe& recipe) {
  const Json own = to_json(recipe);
  const Json there = pruning_of(saved.recipe), here = pruning_of(own);
  Comparison comparison;
  if (trains_adapters(recipe) && saved.recipe.is_object()) {
    const std::string base = "model.pretrained";
    comparison.compare(base, value_at(saved.recipe, base), value_at(own, base));
  }
  if (!here.is_null()) {
    const auto ends = [&](const Json& pruning) { return saved.steps >= pruning["end"]; };
    const bool has_all = !there.is_null() && ends(there) && there["sparsity"] == here["sparsity"];
    TESSERA_CHECK(!ends(here) || has_all, ErrorCode::configuration,
                  "{}: train.prune.end {} is not after the {} steps of {}: no more weights would "
                  "be set to zero, and train.prune.sparsity {} is not reached there; set a later "
                  "train.prune.end",
                  where(recipe, "train.prune.end"), here["end"].dump(), saved.steps, saved.step,
                  here["sparsity"].dump());
  }
  if (!saved.recipe.is_object()) return {};
  const std::string place = "train.prune.";
  if (there.is_null() || here.is_null()) {
    const auto method = [](const Json& pruning) {
      return pruning.is_null() ? Json() : pruning["method"];
    };
    comparison.compare(place + "method", method(there), method(here));
    return comparison.differences;
  }
  for (const auto& [key, value] : there.items()) comparison.compare(place + key, value, here[key]);
  return comparison.differences;
}

std::pair<std::string, std::string> texts_of(const std::vector<RecipeDifference>& differences) {
  std::vector<std::string> there, here;
  for (const RecipeDifference& difference : differences) {
    const auto text = [&](const std::string& value) {
      return value.empty() ? "no " + difference.key : fmt::format("{} {}", difference.key, value);
    };
    there.push_back(text(difference.saved));
    here.push_back(text(difference.own));
  }
  return {fmt::format("{}", fmt::join(there, ", ")), fmt::format("{}", fmt::join(here, ", "))};
}

void require_same_training(const std::vector<RecipeDifference>& differences,
                           const std::string& step) {
  if (differences.empty()) return;
  const auto [there, here] = texts_of(differences);
  const bool prunes =
      std::all_of(differences.begin(), differences.end(),
                  [](const RecipeDifference& one) { return one.key.starts_with("train.prune."); });
  fail(ErrorCode::configuration,
       "{0} was trained with {1}, and this run has {2}; set the values of that step, or begin anew "
       "in another checkpoint.dir{3}",
       step, there, here,
       prunes ? fmt::format(", from its weights with model.pretrained: {} (without train.prune all "
                            "weights are trained again)",
                            step)
              : "");
}

}  // namespace tessera::training
