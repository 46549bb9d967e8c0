// From YAML and --set to a Recipe: it looks up every leaf in the table of keys, and the table reads
// the value.
#include "training/recipe/recipe.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/nearest.h"
#include "base/text/small_file.h"
#include "training/recipe/other_words.h"
#include "training/recipe/schema.h"
#include "training/recipe/values.h"

namespace tessera::training {
namespace {

struct Leaf {
  std::string name;   // as it was written
  std::string where;  // the key's place
  YamlNode value;
};

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}
std::string section_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

bool has_name(const RecipeKey& key, const std::string& name) {
  return key.name == name ||
         std::find(key.synonyms.begin(), key.synonyms.end(), name) != key.synonyms.end();
}

bool is_key(const std::string& name) {
  const auto& keys = recipe_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const RecipeKey& key) { return has_name(key, name); });
}

bool same_key(const std::string& name, const std::string& other) {
  const auto& keys = recipe_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const RecipeKey& key) {
    return has_name(key, name) && has_name(key, other);
  });
}

// `none`, written for a key that is absent by default.
bool says_absent(const std::string& name, const YamlNode& value) {
  if (value.kind != YamlNode::Kind::scalar || lower_case(value.text) != "none") return false;
  const auto& keys = recipe_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const RecipeKey& key) {
    return has_name(key, name) && key.fallback == "none" && !key.type.starts_with("none ");
  });
}

bool is_section(const std::string& name) {
  const auto& keys = recipe_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const RecipeKey& key) { return key.name.starts_with(name + "."); });
}

bool takes_data_sets(const std::string& name) {
  return name == "data.train" || name == "data.valid";
}

// For data.valid.file, where data.valid is a key.
std::string key_above(const std::string& name) {
  for (std::string above = section_of(name); !above.empty(); above = section_of(above)) {
    if (!is_key(above)) continue;
    return takes_data_sets(above)
               ? fmt::format("; {0} is set as a whole, as in --set '{0}={{file: FILE}}'", above)
               : fmt::format("; {} is a key with a value, not a group of keys", above);
  }
  return "";
}

// First the names of other tools, then near names in the same section, then a key of exactly this
// name in another section.
std::string suggestion(const std::string& name) {
  if (std::string above = key_above(name); !above.empty()) return above;
  if (std::string known = other_key(name); !known.empty()) return known;
  const std::string section = section_of(name);
  const std::string word = last_part(name);
  std::set<std::string> siblings;
  for (const RecipeKey& key : recipe_keys()) {
    std::vector<std::string> names = key.synonyms;
    names.push_back(key.name);
    for (const std::string& one : names) {
      if (section.empty()) {
        siblings.insert(one.substr(0, one.find('.')));
      } else if (section_of(one) == section) {
        siblings.insert(last_part(one));
      }
    }
  }
  std::string text = did_you_mean(word, {siblings.begin(), siblings.end()});
  if (!text.empty()) return text;
  for (const RecipeKey& key : recipe_keys()) {
    if (last_part(key.name) == word) return fmt::format("; did you mean {}?", key.name);
  }
  if (section.empty()) {
    return fmt::format("; the sections are {}", fmt::join(siblings, ", "));
  }
  return is_section(section) ? "; docs/recipe.md lists the keys" : "";
}

[[noreturn]] void refuse_unknown(const std::string& place, const std::string& name) {
  fail(ErrorCode::configuration, "{}: unknown key {}{}", place, name, suggestion(name));
}

void collect(const YamlNode& mapping, const std::string& prefix, std::vector<Leaf>& leaves) {
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    const YamlNode& key = mapping.keys[i];
    const YamlNode& value = mapping.items[i];
    const std::string name = prefix.empty() ? key.text : prefix + "." + key.text;
    if (is_key(name)) {
      leaves.push_back({name, key.where, value});
      if (says_absent(name, value)) leaves.back().value.kind = YamlNode::Kind::null;
    } else if (!is_section(name)) {
      refuse_unknown(key.where, name);
    } else if (value.kind == YamlNode::Kind::mapping) {
      collect(value, name, leaves);
    } else if (value.kind != YamlNode::Kind::null) {
      fail(ErrorCode::configuration, "{}: {} must be a group of keys, got {}", key.where, name,
           describe(value));
    }
  }
}

bool takes_free_text(const std::string& name) {
  for (const RecipeKey& key : recipe_keys()) {
    if (has_name(key, name)) return key.free_text;
  }
  return false;
}

Leaf parse_override(const std::string& text) {
  const std::string place = "--set " + text;
  const std::size_t equals = text.find('=');
  TESSERA_CHECK(equals != std::string::npos && equals > 0, ErrorCode::usage,
                "{}: must be key=value, as in --set train.steps=100", place);
  Leaf leaf;
  leaf.name = text.substr(0, equals);
  leaf.where = place;
  TESSERA_CHECK(!is_section(leaf.name) || is_key(leaf.name), ErrorCode::configuration,
                "{}: {} is a group of keys; set them one by one, as in --set train.steps=100",
                place, leaf.name);
  if (!is_key(leaf.name)) refuse_unknown(place, leaf.name);
  const std::string value = text.substr(equals + 1);
  TESSERA_CHECK(!value.empty(), ErrorCode::configuration,
                "{}: the value is empty; give one, or null to take {} back", place, leaf.name);
  const bool structured = value.starts_with('[') || value.starts_with('{');
  if (takes_free_text(leaf.name) && !(structured && takes_data_sets(leaf.name))) {
    leaf.value.kind = value == "null" ? YamlNode::Kind::null : YamlNode::Kind::scalar;
    leaf.value.text = value;
    leaf.value.where = place;
  } else {
    leaf.value = parse_yaml(value, place, false);
    leaf.value.where = place;
  }
  if (says_absent(leaf.name, leaf.value)) leaf.value.kind = YamlNode::Kind::null;
  return leaf;
}

// "; it is model.n_embd there" for a key that GPT-2 and the others name differently.
std::string same_in_architecture(const std::string& name, const std::string& architecture) {
  constexpr std::pair<std::string_view, std::string_view> pairs[] = {
      {"model.hidden_size", "model.n_embd"},
      {"model.num_hidden_layers", "model.n_layer"},
      {"model.num_attention_heads", "model.n_head"},
      {"model.intermediate_size", "model.n_inner"},
      {"model.max_position_embeddings", "model.n_positions"}};
  for (const auto& [one, other] : pairs) {
    if (name != one && name != other) continue;
    const std::string_view meant = name == one ? other : one;
    for (const RecipeKey& key : recipe_keys()) {
      if (key.name == meant && key.architecture == architecture) {
        return fmt::format("; it is {} there", meant);
      }
    }
  }
  return "";
}

// The row for a leaf. If several architectures have this name, the row of the recipe's
// architecture.
const RecipeKey& row_for(const Leaf& leaf, const Recipe& recipe) {
  const RecipeKey* other = nullptr;
  for (const RecipeKey& key : recipe_keys()) {
    if (!has_name(key, leaf.name)) continue;
    const bool any_architecture =
        recipe.model.pretrained && !recipe.given.contains("model.architecture");
    if (key.architecture.empty() || any_architecture ||
        key.architecture == recipe.model.architecture)
      return key;
    other = &key;
  }
  fail(ErrorCode::configuration,
       "{}: {} is a key of architecture {}, and model.architecture is {}{}", leaf.where, leaf.name,
       other->architecture, recipe.model.architecture,
       same_in_architecture(other->name, recipe.model.architecture));
}

// With a pretrained model, the folder's config.json describes the model; the recipe can only change
// how it is trained.
void check_pretrained(const RecipeKey& key, const Leaf& leaf, const Recipe& recipe) {
  TESSERA_CHECK(
      key.architecture.empty() || !recipe.model.pretrained || key.is_dropout_rate,
      ErrorCode::configuration,
      "{}: {} cannot be set beside model.pretrained, because its config.json has it; leave one out",
      leaf.where, key.name);
}

void apply(const std::vector<Leaf>& leaves, bool overriding, Recipe& recipe) {
  std::map<std::string, std::string> places;
  // Keys that decide about other keys are read first.
  for (const bool first : {true, false}) {
    for (const Leaf& leaf : leaves) {
      const bool decides = leaf.name == "model.architecture" || leaf.name == "model.pretrained";
      if (decides != first) continue;
      const RecipeKey& key = row_for(leaf, recipe);
      const auto [earlier, inserted] = places.emplace(key.name, leaf.where);
      TESSERA_CHECK(inserted || overriding, ErrorCode::configuration,
                    "{}: {} is given twice under two names, first at {}; keep one", leaf.where,
                    key.name, earlier->second);
      YamlNode value = leaf.value;
      value.where = leaf.where;
      check_pretrained(key, leaf, recipe);
      if (value.kind == YamlNode::Kind::null && key.optional) continue;  // the default stays
      key.read(recipe, value);
      recipe.given[key.name] = leaf.where;
    }
  }
}

// Applies the outer settings, or the assumed ones, which the recipe's own keys override. Notes the
// keys of the recipe that are overridden.
void apply_configuration(const OuterSettings& outer, bool assumed,
                         const std::vector<Leaf>& overrides, const std::vector<Leaf>& recipe_leaves,
                         Recipe& recipe) {
  for (const OuterSetting& setting : outer.settings) {
    const auto says = [&](const Leaf& leaf) { return same_key(leaf.name, setting.recipe_key); };
    const bool taken_back = std::any_of(overrides.begin(), overrides.end(), [&](const Leaf& leaf) {
      return leaf.value.kind == YamlNode::Kind::null && says(leaf);
    });
    if (setting.assumed != assumed || taken_back) continue;
    const Leaf leaf{setting.recipe_key, setting.where, setting.value};
    const RecipeKey& key = row_for(leaf, recipe);
    const nlohmann::json before = key.write(recipe);
    apply({leaf}, true, recipe);
    const auto own = std::find_if(recipe_leaves.begin(), recipe_leaves.end(), says);
    if (own == recipe_leaves.end() || key.write(recipe) == before) continue;
    recipe.notes.push_back(fmt::format("{}: {} overrides {}: {}: {}", setting.where, setting.said,
                                       own->where, own->name, describe(own->value)));
  }
  if (!assumed) {
    recipe.notes.insert(recipe.notes.begin(), outer.notes.begin(), outer.notes.end());
    recipe.configured_ranks = outer.processes;
  }
}

// True if the printed default would not be the value in use, because the pretrained folder's value
// is.
bool is_folders(const RecipeKey& key, const Recipe& recipe) {
  if (!recipe.model.pretrained || recipe.given.contains(key.name)) return false;
  if (key.name == "model.seq_len") return !predicts_tokens(recipe);
  return key.name == "model.architecture" || key.name == "model.dropout";
}

bool is_of_another_model(const RecipeKey& key, const Recipe& recipe) {
  const bool any = recipe.model.pretrained && !recipe.given.contains("model.architecture");
  return !any && !key.architecture.empty() && key.architecture != recipe.model.architecture;
}

}  // namespace

Recipe parse_recipe(std::string_view text, const std::string& source,
                    const std::vector<std::string>& overrides, const OuterSettings* outer) {
  const YamlNode root = parse_yaml(text, source);
  TESSERA_CHECK(root.kind != YamlNode::Kind::null, ErrorCode::configuration,
                "{}: empty; a recipe needs at least data.train (docs/recipe.md)", source);
  TESSERA_CHECK(root.kind == YamlNode::Kind::mapping, ErrorCode::configuration,
                "{}: must be groups of keys (model, data, train, ...), got {}", root.where,
                describe(root));
  Recipe recipe;
  recipe.source = source;
  std::vector<Leaf> leaves;
  collect(root, "", leaves);
  std::vector<Leaf> settings;
  for (const std::string& override_text : overrides)
    settings.push_back(parse_override(override_text));
  for (const Leaf& setting : settings) {
    // Keys that decide about other keys must be known before the file's keys are checked;
    // `key=null` removes a value.
    const bool decides = setting.name == "model.architecture" || setting.name == "model.pretrained";
    if (!decides && setting.value.kind != YamlNode::Kind::null) continue;
    std::erase_if(leaves, [&](const Leaf& leaf) { return same_key(leaf.name, setting.name); });
    if (decides) leaves.push_back(setting);
  }
  if (outer != nullptr) apply_configuration(*outer, true, settings, {}, recipe);
  apply(leaves, false, recipe);
  if (outer != nullptr) apply_configuration(*outer, false, settings, leaves, recipe);
  apply(settings, true, recipe);
  complete_model(recipe);
  return recipe;
}

Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  return parse_recipe(read_small_file(path, "recipe"), path.string(), overrides);
}

nlohmann::json to_json(const Recipe& recipe) {
  nlohmann::json result = nlohmann::json::object();
  for (const RecipeKey& key : recipe_keys()) {
    if (!key.write || is_of_another_model(key, recipe) || is_folders(key, recipe)) continue;
    nlohmann::json value = key.write(recipe);
    if (value.is_null() && !key.architecture.empty()) continue;
    std::string path = "/" + key.name;
    std::replace(path.begin(), path.end(), '.', '/');
    result[nlohmann::json::json_pointer(path)] = std::move(value);
  }
  return result;
}

std::string to_text(const Recipe& recipe) {
  return to_json(recipe).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string where(const Recipe& recipe, const std::string& key) {
  const auto found = recipe.given.find(key);
  return found == recipe.given.end() ? recipe.source : found->second;
}

}  // namespace tessera::training
