// The table of Accelerate's keys and the settings of a file, as text.
#include "cli/commands/config/explain.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/printable.h"
#include "engine/device/backend.h"
#include "planner/advice.h"
#include "training/recipe/accelerate/keys.h"
#include "training/recipe/schema.h"
#include "training/recipe/values.h"

namespace tessera::cli {
namespace {

using training::Recipe;

std::string values_text(const training::AccelerateKey& key) {
  std::string text;
  for (const training::AccelerateExample& example : key.taken) {
    text += fmt::format("{}`{}`", text.empty() ? "" : " ", example.value);
  }
  return text;
}

std::string quoted_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += fmt::format("{}`{}`", text.empty() ? "" : " ", word);
  }
  return text;
}

std::string becomes_text(const training::AccelerateKey& key) {
  if (key.becomes.empty()) return key.elsewhere ? "unused" : "";
  const bool recipe_key = key.becomes.find_first_of(" `") == std::string::npos;
  return recipe_key ? "`" + key.becomes + "`" : key.becomes;
}

std::string table(const std::string& group) {
  std::string text =
      "| key | version | accepted | refused | becomes | effect here |\n|---|---|---|---|---|---|\n";
  for (const training::AccelerateKey& key : training::accelerate_keys()) {
    if (key.group != group) continue;
    const std::string version = key.version != 0         ? std::to_string(key.version)
                                : group == "fsdp_config" ? "1, 2"
                                                         : "";
    std::string help = key.help + ".";
    if (!key.aliases.empty()) {
      help += fmt::format(" Also {}, with a warning.", quoted_list(key.aliases));
    }
    text += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", key.name, version, values_text(key),
                        quoted_list(key.refused), becomes_text(key), help);
  }
  return text;
}

std::string said_value(const training::YamlNode& value) {
  if (value.kind == training::YamlNode::Kind::scalar) return printable(value.text);
  return printable(training::describe(value));
}

// "NO_SHARD: nothing is sharded", for a value that the key's row explains.
std::string meaning_of(const training::AccelerateKey& key, const training::YamlNode& value) {
  if (value.kind != training::YamlNode::Kind::scalar) return "";
  for (const training::AccelerateExample& example : key.taken) {
    std::string name = example.value;
    std::erase(name, '\'');
    if (!example.meaning.empty() &&
        training::lower_case(name) == training::lower_case(value.text)) {
      return fmt::format("{}: {}", value.text, example.meaning);
    }
  }
  return "";
}

// The recipe's value, as it was read.
std::string value_in(const Recipe& recipe, const std::string& name) {
  for (const training::RecipeKey& key : training::recipe_keys()) {
    if (key.name != name || !key.write) continue;
    const nlohmann::json value = key.write(recipe);
    return value.is_string() ? printable(value.get<std::string>()) : value.dump();
  }
  return "";
}

PlanWorld world_for(const Recipe& recipe, int ranks) {
  const training::DeviceChoice choice = recipe.train.device;
  const bool gpus =
      choice == training::DeviceChoice::cuda || (choice == training::DeviceChoice::automatic &&
                                                 parse_device("auto").type == DeviceType::cuda);
  return {.ranks = ranks,
          .device = gpus ? DeviceType::cuda : DeviceType::cpu,
          .one_memory = {},
          .fixed_reduction_order = recipe.sharding.fixed_reduction_order};
}

std::string change_text(std::size_t with, std::size_t without) {
  if (with == without) return "the same";
  return with > without ? bytes_text(with - without) + " more"
                        : bytes_text(without - with) + " less";
}

std::string difference(const MemoryPlan& with, const Recipe& other, const PlanWorld& world) {
  const planner::StrategyPlan without =
      planner::plan_strategy(other, world, other.sharding.sharding_strategy);
  if (!without.plan) return "without it: " + without.refused;
  return fmt::format("holds {}, moves {}", change_text(with.total(), without.plan->total()),
                     change_text(with.moved_bytes(), without.plan->moved_bytes()));
}

}  // namespace

std::string accelerate_reference() {
  std::string text = "### At the top of a file\n\n" + table("");
  for (const std::string& group : training::accelerate_groups()) {
    text += fmt::format("\n### `{}`\n\n{}", group, table(group));
  }
  return text;
}

std::string explain_settings(const training::AccelerateConfig& config, const Recipe& recipe) {
  std::string text = fmt::format("{}:\n", config.source);
  for (const training::AccelerateEntry& entry : config.given) {
    const training::AccelerateKey& key = *entry.key;
    text += fmt::format("  {}: {}\n", entry.written, said_value(entry.value));
    bool effective = false;
    for (const training::OuterSetting& setting : config.settings) {
      if (setting.where != entry.where) continue;
      effective = true;
      text +=
          fmt::format("      {}: {}\n", setting.recipe_key, value_in(recipe, setting.recipe_key));
    }
    const bool words = !effective && key.becomes.find_first_of(" `") != std::string::npos;
    text += fmt::format("      {}{}{}\n", words ? key.becomes + "; " : "",
                        key.elsewhere ? "unused: "
                        : key.idle    ? "no effect: "
                                      : "",
                        key.help);
    if (const std::string meaning = meaning_of(key, entry.value); !meaning.empty()) {
      text += fmt::format("      {}\n", meaning);
    }
  }
  for (const training::OuterSetting& setting : config.settings) {
    if (!setting.assumed || setting.where != config.source) continue;
    text += fmt::format("  (not given)\n      {}: {}\n      {}, if the recipe does not set it\n",
                        setting.recipe_key, value_in(recipe, setting.recipe_key), setting.said);
  }
  return text;
}

std::string explain_costs(
    const training::AccelerateConfig& config, const Recipe& recipe,
    const std::function<Recipe(const training::AccelerateConfig&)>& recipe_under, int ranks) {
  const PlanWorld world = world_for(recipe, ranks);
  const planner::StrategyPlan whole =
      planner::plan_strategy(recipe, world, recipe.sharding.sharding_strategy);
  if (!whole.plan) fail(ErrorCode::configuration, "{}", whole.refused);
  std::string text =
      fmt::format("\non {}, {} rank{}, {}: a rank holds {}, and a step moves {}\n", recipe.source,
                  ranks, ranks == 1 ? "" : "s",
                  world.device == DeviceType::cuda ? "a GPU each" : "the CPUs of one node",
                  bytes_text(whole.plan->total()), bytes_text(whole.plan->moved_bytes()));
  std::vector<std::string> without_difference;
  for (std::size_t i = 0; i < config.settings.size(); ++i) {
    const training::OuterSetting& setting = config.settings[i];
    if (setting.assumed || !setting.recipe_key.starts_with("sharding.")) continue;
    training::AccelerateConfig rest = config;
    rest.settings.erase(rest.settings.begin() + static_cast<std::ptrdiff_t>(i));
    const Recipe other = recipe_under(rest);
    const std::string with = value_in(recipe, setting.recipe_key);
    const std::string instead = value_in(other, setting.recipe_key);
    if (with == instead) {
      without_difference.push_back(setting.said);
    } else {
      text += fmt::format("  {}  ({} instead of {})\n      {}\n", setting.said, with, instead,
                          difference(*whole.plan, other, world));
    }
  }
  if (!without_difference.empty()) {
    text += fmt::format("  as it is without the file: {}\n", fmt::join(without_difference, "; "));
  }
  return text;
}

}  // namespace tessera::cli
