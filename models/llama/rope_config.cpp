// Rotary positions in config.json.
#include "models/llama/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/config/config_table.h"

namespace tessera::models {
namespace {

constexpr const char* llama3_keys[] = {"rope_scaling.low_freq_factor",
                                       "rope_scaling.high_freq_factor"};
constexpr const char* original_key = "rope_scaling.original_max_position_embeddings";
constexpr const char* factor_key = "rope_scaling.factor";
constexpr const char* type_key = "rope_scaling.rope_type";

auto scaling_member(auto member) {
  return [member](auto& config) -> auto& {
    return config.rope_scaling.*member;
  };
}

void add_yarn_rows(ConfigTable<LlamaConfig>& table) {
  using S = RopeScaling;
  const auto add = [&](const char* key, auto member, const char* help, Range range = {}) {
    table.add(std::string("rope_scaling.") + key, scaling_member(member), help, range).optional();
  };
  add("beta_fast", &S::beta_fast,
      "`yarn`: frequencies with more turns in the original positions are not stretched; 32 if "
      "absent.",
      above(0));
  add("beta_slow", &S::beta_slow,
      "`yarn`: those with fewer turns are stretched fully; 1 if absent.", above(0));
  add("truncate", &S::truncate, "`yarn`: both limits are moved to whole pairs; true if absent.");
  add("attention_factor", &S::attention_factor,
      "`yarn`: multiplies queries and keys; 0.1 ln(`factor`) + 1 if absent.", above(0));
  add("mscale", &S::mscale, "`yarn`: weight of ln(`factor`) in `attention_factor`.", at_least(0));
  add("mscale_all_dim", &S::mscale_all_dim,
      "`yarn`: the same in its divisor; used if both are given.", at_least(0));
}

std::string help_of_types(const std::vector<std::string>& rope_types, const RopeScaling& fallback) {
  if (rope_types.size() == 1) return "No scaling.";
  if (fallback.rope_type == "default")
    return "`linear` needs `factor`; `llama3` the three keys below it; `yarn` `factor`.";
  return fmt::format(
      "`yarn` needs `factor`. Without a key of `rope_scaling`: `yarn` with factor {:g}, {} "
      "original "
      "positions and limits that are {}moved to whole pairs.",
      fallback.factor, fallback.original_max_position_embeddings,
      fallback.truncate.value_or(true) ? "" : "not ");
}

void check_yarn(const ConfigReader& reader, const LlamaConfig& c) {
  const RopeScaling& scaling = c.rope_scaling;
  reader.check_key(c.rope_theta > 1, "rope_theta", "= {} is not above 1, which yarn needs",
                   c.rope_theta);
  const double fast = scaling.beta_fast.value_or(32);
  const double slow = scaling.beta_slow.value_or(1);
  reader.check_key(fast >= slow, "rope_scaling.beta_fast", "= {} is below beta_slow = {}", fast,
                   slow);
}

}  // namespace

void add_rope_rows(ConfigTable<LlamaConfig>& table, const std::vector<std::string>& rope_types,
                   const RopeScaling& fallback) {
  using S = RopeScaling;
  const auto scales = [&](const char* type) {
    return std::find(rope_types.begin(), rope_types.end(), type) != rope_types.end();
  };
  table.add("rope_theta", &LlamaConfig::rope_theta, "Base of the rotary frequencies.", above(0));
  table
      .choice(type_key, scaling_member(&S::rope_type), rope_types,
              help_of_types(rope_types, fallback))
      .optional();
  if (rope_types.size() == 1) return;
  table.add(factor_key, scaling_member(&S::factor), "Stretch of the low frequencies.", at_least(1))
      .optional();
  if (scales("llama3")) {
    table
        .add(llama3_keys[0], scaling_member(&S::low_freq_factor), "Where low frequencies end.",
             above(0))
        .optional();
    table
        .add(llama3_keys[1], scaling_member(&S::high_freq_factor), "Where high frequencies begin.",
             above(0))
        .optional();
  }
  table
      .add(original_key, scaling_member(&S::original_max_position_embeddings),
           "Positions before the stretch.", at_least(1))
      .optional();
  if (scales("yarn")) add_yarn_rows(table);
}

nlohmann::json unified_rope(nlohmann::json config, bool& parameters) {
  if (!config.is_object()) return config;
  parameters = config.contains("rope_parameters") && !config["rope_parameters"].is_null();
  if (parameters) config["rope_scaling"] = config["rope_parameters"];
  config.erase("rope_parameters");
  const auto scaling = config.find("rope_scaling");
  if (scaling == config.end() || !scaling->is_object()) return config;
  // The first configurations with scaling spelled it "type".
  if (scaling->contains("type") && !scaling->contains("rope_type")) {
    (*scaling)["rope_type"] = (*scaling)["type"];
  }
  nlohmann::json moved = nlohmann::json::object();
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (!scaling->contains(key)) continue;
    moved[key] = (*scaling)[key];
    scaling->erase(key);
  }
  config.update(moved);
  return config;
}

nlohmann::json with_default_scaling(nlohmann::json config, const DecoderFamily& family) {
  const RopeScaling scaling = family.defaults().rope_scaling;
  if (!config.is_object() || scaling.rope_type == "default") return config;
  const auto given = config.find("rope_scaling");
  if (given == config.end() || given->is_null()) {
    config["rope_scaling"] = scaling_to_json(scaling, family);
  }
  return config;
}

ConfigSource with_rope_parameters(const ConfigSource& source) {
  return {
      source.where, [name = source.name](const std::string& key) {
        constexpr std::string_view older = "rope_scaling";
        return name(key.starts_with(older) ? "rope_parameters" + key.substr(older.size()) : key);
      }};
}

void check_rope(const ConfigReader& reader, LlamaConfig& c) {
  RopeScaling& scaling = c.rope_scaling;
  if (!reader.has(type_key)) {
    for (const char* key : {factor_key, llama3_keys[0], llama3_keys[1]}) {
      reader.check_key(!reader.has(key), type_key, "is missing beside {}", reader.name_of_key(key));
    }
  }
  if (scaling.rope_type == "default") return;
  reader.check_key(reader.has(factor_key), factor_key, "is missing for rope_type {}",
                   scaling.rope_type);
  if (scaling.rope_type == "linear") return;
  if (!reader.has(original_key)) {
    scaling.original_max_position_embeddings = c.max_position_embeddings;
  }
  if (scaling.rope_type == "yarn") return check_yarn(reader, c);
  for (const char* key : llama3_keys) {
    reader.check_key(reader.has(key), key, "is missing for rope_type llama3");
  }
  reader.check_key(scaling.high_freq_factor > scaling.low_freq_factor, llama3_keys[1],
                   "= {} is not above low_freq_factor = {}", scaling.high_freq_factor,
                   scaling.low_freq_factor);
}

nlohmann::json scaling_to_json(const RopeScaling& scaling, const DecoderFamily& family) {
  if (scaling.rope_type == "default") {
    if (family.defaults().rope_scaling.rope_type == "default") return nullptr;
    return {{"rope_type", "default"}};
  }
  nlohmann::json json = {{"rope_type", scaling.rope_type}, {"factor", scaling.factor}};
  if (scaling.rope_type == "linear") return json;
  json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  if (scaling.rope_type == "llama3") {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    return json;
  }
  const auto add = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("beta_fast", scaling.beta_fast);
  add("beta_slow", scaling.beta_slow);
  add("truncate", scaling.truncate);
  add("attention_factor", scaling.attention_factor);
  add("mscale", scaling.mscale);
  add("mscale_all_dim", scaling.mscale_all_dim);
  return json;
}

}  // namespace tessera::models
