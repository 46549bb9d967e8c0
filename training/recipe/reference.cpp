// docs/recipe.md's tables, from the table of keys.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "training/recipe/data_sets.h"
#include "training/recipe/schema.h"

namespace tessera::training {
namespace {

std::string default_text(const RecipeKey& key, const nlohmann::json& defaults) {
  if (!key.fallback.empty()) return key.fallback;
  std::string path = "/" + key.name;
  for (char& c : path) {
    if (c == '.') c = '/';
  }
  const nlohmann::json& value = defaults.at(nlohmann::json::json_pointer(path));
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string title(const RecipeKey& key) {
  const std::string section = key.name.substr(0, key.name.find('.'));
  return key.architecture.empty() ? section
                                  : fmt::format("{}, architecture {}", section, key.architecture);
}

}  // namespace

std::string recipe_reference() {
  const nlohmann::json defaults = to_json(Recipe{});
  std::string text;
  std::string current;
  for (const RecipeKey& key : recipe_keys()) {
    if (title(key) != current) {
      current = title(key);
      text += fmt::format("{}### {}\n\n| key | values | default | meaning |\n|---|---|---|---|\n",
                          text.empty() ? "" : "\n", current);
    }
    const std::string name = key.name.substr(key.name.find('.') + 1);
    const std::string values =
        key.range.empty() ? key.type : fmt::format("{}, {}", key.type, key.range);
    text += fmt::format("| `{}` | {} | {} | {} |\n", name, values, default_text(key, defaults),
                        key.help);
  }
  return text + "\n" + data_set_reference();
}

}  // namespace tessera::training
