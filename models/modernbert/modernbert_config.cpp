// The table of ModernBERT's keys, and the keys that concern layers.
#include "models/modernbert/modernbert_config.h"

#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {
namespace {

using nlohmann::json;

constexpr const char* full_layer = "full_attention";
constexpr const char* window_layer = "sliding_attention";

// transformers 5 has the rotary bases in rope_parameters, by kind of layer. Only their bases may
// differ from the defaults.
void read_rope_parameters(const ConfigReader& reader, const json& config, ModernBertConfig& c) {
  constexpr const char* key = "rope_parameters";
  reader.check_key(!reader.has("rope_scaling"), "rope_scaling", "is not supported; use null");
  if (!reader.has(key)) return;
  const json& parameters = config[key];
  reader.check_key(parameters.is_object(), key, "is {}; it must be an object", parameters.dump());
  for (const auto& [kind, base] : {std::pair{full_layer, &c.global_rope_theta},
                                   std::pair{window_layer, &c.local_rope_theta}}) {
    const auto own = parameters.find(kind);
    if (own == parameters.end() || own->is_null()) continue;
    reader.check_key(own->is_object() && own->value("rope_type", json("default")) == "default", key,
                     "has {} for {}; only rope_type \"default\" is supported", own->dump(), kind);
    const json theta = own->value("rope_theta", json(*base));
    reader.check_key(theta.is_number() && theta.get<double>() > 0, key,
                     "has the rope_theta {} for {}; it must be a number above 0", theta.dump(),
                     kind);
    *base = theta.get<double>();
  }
}

void read_layer_types(const ConfigReader& reader, const json& config, ModernBertConfig& c) {
  constexpr const char* key = "layer_types";
  if (!reader.has(key)) return;
  const json& types = config[key];
  reader.check_key(
      types.is_array() && static_cast<std::int64_t>(types.size()) == c.num_hidden_layers, key,
      "must be a list of \"{}\" or \"{}\" for each of {} layers", full_layer, window_layer,
      c.num_hidden_layers);
  for (const json& type : types) {
    reader.check_key(type == full_layer || type == window_layer, key,
                     "has {}; it must have \"{}\" or \"{}\"", type.dump(), full_layer,
                     window_layer);
    c.layers_with_window.push_back(type == window_layer);
  }
}

}  // namespace

const ConfigTable<ModernBertConfig>& ModernBertConfig::table() {
  using C = ModernBertConfig;
  static const ConfigTable<C> table = [] {
    ConfigTable<C> rows;
    rows.add("hidden_size", &C::hidden_size,
             "Width; a multiple of `num_attention_heads`, with an even number for each head.",
             width_of());
    rows.add("num_hidden_layers", &C::num_hidden_layers, "Layers.", layer_count());
    rows.add("num_attention_heads", &C::num_attention_heads, "Attention heads.", width_of());
    rows.add("intermediate_size", &C::intermediate_size, "Width of the feed-forward layer.",
             width_of());
    rows.choice("hidden_activation", &C::hidden_activation,
                {"gelu", "gelu_new", "gelu_pytorch_tanh"},
                "`gelu` is the exact form, the others the tanh one.");
    rows.dropout("embedding_dropout", &C::embedding_dropout, "Dropout of the embeddings.");
    rows.dropout("attention_dropout", &C::attention_dropout,
                 "Dropout of the attention's probabilities, and of its output.");
    rows.dropout("mlp_dropout", &C::mlp_dropout, "Dropout within the feed-forward layers.");
    rows.positions("max_position_embeddings", &C::max_position_embeddings);
    rows.vocabulary(&C::vocab_size);
    rows.add("local_attention", &C::local_attention,
             "Tokens that a layer with a window sees, half of them on each side.", at_least(2));
    rows.add("global_attn_every_n_layers", &C::global_attn_every_n_layers,
             "Each layer of this multiple, from the first on, sees all tokens. A folder's list "
             "`layer_types` replaces it.",
             at_least(1));
    rows.add("global_rope_theta", &C::global_rope_theta,
             "Base of the rotary frequencies of layers that see all tokens.", above(0));
    rows.add("local_rope_theta", &C::local_rope_theta,
             "Base of the rotary frequencies of layers with the window; null: that of the others.",
             above(0))
        .follows_where_null([](const C& c) { return json(c.global_rope_theta); });
    rows.add("norm_eps", &C::norm_eps, "Epsilon of the norms.", above(0));
    rows.add("norm_bias", &C::norm_bias, "The norms have a bias.");
    rows.add("attention_bias", &C::attention_bias, "The attention's projections have a bias.");
    rows.add("mlp_bias", &C::mlp_bias, "The feed-forward layers have a bias.");
    rows.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
             above(0));
    return rows;
  }();
  return table;
}

ModernBertConfig ModernBertConfig::parse(const json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  ModernBertConfig c = table().read(reader);
  reader.check_key(c.hidden_size % (2 * c.num_attention_heads) == 0, "hidden_size",
                   "= {} is not an even multiple of num_attention_heads = {}", c.hidden_size,
                   c.num_attention_heads);
  read_rope_parameters(reader, config, c);
  read_layer_types(reader, config, c);
  c.original = config.dump();
  return c;
}

json ModernBertConfig::to_json(DType weights) const {
  json config = json::parse(original);
  table().write(*this, config);
  complete_config(config, "ModernBertModel", "modernbert", weights);
  // transformers' default may lie outside the vocabulary.
  if (!config.contains("pad_token_id")) config["pad_token_id"] = nullptr;
  return config;
}

}  // namespace tessera::models
