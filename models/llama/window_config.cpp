// Windows by layer.
#include "models/llama/window_config.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "models/config/config_table.h"

namespace tessera::models {
namespace {

constexpr const char* types_key = "layer_types";
constexpr const char* full = "full_attention";
constexpr const char* sliding = "sliding_attention";

}  // namespace

void add_window_row(ConfigTable<LlamaConfig>& table) {
  table.add("sliding_window", &LlamaConfig::sliding_window,
            "Tokens that a token sees, itself included.", at_least(1));
}

void add_local_rows(ConfigTable<LlamaConfig>& table) {
  add_window_row(table);
  table.add("sliding_window_pattern", &LlamaConfig::sliding_window_pattern,
            "Each layer of this multiple sees all tokens. A folder's list `layer_types` replaces "
            "it.",
            at_least(1));
  table.add("rope_local_base_freq", &LlamaConfig::rope_local_base_freq,
            "Base of the rotary frequencies of layers with the window.", above(0));
  table.add("query_pre_attn_scalar", &LlamaConfig::query_pre_attn_scalar,
            "Attention's scores are divided by its square root.", at_least(1));
}

void read_windows(const ConfigReader& reader, const nlohmann::json& config, LlamaConfig& c) {
  if (c.sliding_window_pattern == 0 || !reader.has(types_key)) return;
  const nlohmann::json& types = config[types_key];
  reader.check_key(
      types.is_array() && static_cast<std::int64_t>(types.size()) == c.num_hidden_layers, types_key,
      "must be a list of \"{}\" or \"{}\" for each of {} layers", full, sliding,
      c.num_hidden_layers);
  for (const nlohmann::json& type : types) {
    reader.check_key(type == full || type == sliding, types_key,
                     "has {}; it must have \"{}\" or \"{}\"", type.dump(), full, sliding);
    c.layers_with_window.push_back(type == sliding);
  }
}

void write_layer_types(const LlamaConfig& c, nlohmann::json& config) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    types.push_back(c.sees_all(layer) ? full : sliding);
  }
  config[types_key] = std::move(types);
}

void refuse_other_windows(const ConfigReader& reader, const nlohmann::json& config,
                          const LlamaConfig& c) {
  reader.only("use_bidirectional_attention", false);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    reader.check_key(!reader.has(key), key, "is not supported; use null");
  }
  if (c.sliding_window_pattern > 0 || !reader.has(types_key)) return;
  const nlohmann::json& types = config[types_key];
  reader.check_key(types.is_array(), types_key, "is {}; it must be a list", types.dump());
  for (const nlohmann::json& type : types) {
    reader.check_key(type == full, types_key, "has {}, which is not supported; use \"{}\"",
                     type.dump(), full);
  }
}

nlohmann::json unified_layer_ropes(nlohmann::json config, const ConfigSource& source) {
  if (!config.is_object() || !config.contains("rope_parameters")) return config;
  const nlohmann::json parameters = config["rope_parameters"];
  if (!parameters.is_object() || !parameters.contains(full)) return config;
  const ConfigReader reader(config, source);
  config["rope_parameters"] = parameters.at(full);
  const auto local = parameters.find(sliding);
  if (local == parameters.end() || local->is_null()) return config;
  reader.check_key(local->is_object(), "rope_parameters", "has {} as {}", local->dump(), sliding);
  const nlohmann::json type = local->value("rope_type", nlohmann::json("default"));
  reader.check_key(type == "default", "rope_parameters",
                   "has the rope_type {} for {}, which is not supported; use \"default\"",
                   type.dump(), sliding);
  if (local->contains("rope_theta")) config["rope_local_base_freq"] = local->at("rope_theta");
  return config;
}

}  // namespace tessera::models
