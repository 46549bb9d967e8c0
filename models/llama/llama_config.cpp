// Llama's config.json, and the common part of models of its build.
#include "models/llama/llama_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {
namespace {

constexpr const char* llama3_keys[] = {"rope_scaling.low_freq_factor",
                                       "rope_scaling.high_freq_factor",
                                       "rope_scaling.original_max_position_embeddings"};

void add_rope_rows(ConfigTable<LlamaConfig>& table) {
  table.add("rope_theta", &LlamaConfig::rope_theta, "Base of the rotary frequencies.", above(0));
  const auto scaling = [](auto member) {
    return [member](auto& config) -> auto& {
      return config.rope_scaling.*member;
    };
  };
  using S = RopeScaling;
  table
      .choice("rope_scaling.rope_type", scaling(&S::rope_type), {"default", "linear", "llama3"},
              "`linear` needs `factor`, `llama3` the four keys below.")
      .optional();
  table
      .add("rope_scaling.factor", scaling(&S::factor), "Stretch of the low frequencies.",
           at_least(1))
      .optional();
  table.add(llama3_keys[0], scaling(&S::low_freq_factor), "Where low frequencies end.", above(0))
      .optional();
  table
      .add(llama3_keys[1], scaling(&S::high_freq_factor), "Where high frequencies begin.", above(0))
      .optional();
  table
      .add(llama3_keys[2], scaling(&S::original_max_position_embeddings),
           "Positions before the stretch.", at_least(1))
      .optional();
}

// Converts rotary positions to one spelling: rope_theta, and scaling with its rope_type. Sets
// `parameters` if the source used the newer spelling, rope_parameters.
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
  if (scaling->contains("rope_theta")) {
    const nlohmann::json theta = (*scaling)["rope_theta"];
    scaling->erase("rope_theta");
    config["rope_theta"] = theta;
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
  if (!reader.has("rope_scaling.rope_type")) {
    for (const char* key : {"rope_scaling.factor", llama3_keys[0], llama3_keys[1]}) {
      reader.check_key(!reader.has(key), "rope_scaling.rope_type", "is missing beside {}",
                       reader.name_of_key(key));
    }
  }
  if (scaling.rope_type == "default") return;
  reader.check_key(reader.has("rope_scaling.factor"), "rope_scaling.factor",
                   "is missing for rope_type {}", scaling.rope_type);
  if (scaling.rope_type == "linear") return;
  for (const char* key : {llama3_keys[0], llama3_keys[1]}) {
    reader.check_key(reader.has(key), key, "is missing for rope_type llama3");
  }
  if (!reader.has(llama3_keys[2])) {
    scaling.original_max_position_embeddings = c.max_position_embeddings;
  }
  reader.check_key(scaling.high_freq_factor > scaling.low_freq_factor, llama3_keys[1],
                   "= {} is not above low_freq_factor = {}", scaling.high_freq_factor,
                   scaling.low_freq_factor);
}

nlohmann::json scaling_to_json(const RopeScaling& scaling) {
  if (scaling.rope_type == "default") return nullptr;
  nlohmann::json json = {{"rope_type", scaling.rope_type}, {"factor", scaling.factor}};
  if (scaling.rope_type == "llama3") {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  return json;
}

ConfigTable<LlamaConfig> make_llama_table() {
  const LlamaConfig defaults;
  ConfigTable<LlamaConfig> table = decoder_table(defaults);
  table.add("attention_bias", &LlamaConfig::attention_bias,
            "Biases in the attention's projections.");
  table.add("mlp_bias", &LlamaConfig::mlp_bias, "Biases in the feed-forward layers.");
  return table;
}

}  // namespace

ConfigTable<LlamaConfig> decoder_table(const LlamaConfig& defaults, KeyHeads absent) {
  using C = LlamaConfig;
  ConfigTable<C> table(defaults);
  table.add("hidden_size", &C::hidden_size, "Width.", width_of());
  table.add("intermediate_size", &C::intermediate_size, "Width of the feed-forward layer.",
            width_of());
  table.add("num_hidden_layers", &C::num_hidden_layers, "Layers.", layer_count());
  table.add("num_attention_heads", &C::num_attention_heads, "Attention heads.", width_of());
  auto& key_heads = table.add("num_key_value_heads", &C::num_key_value_heads,
                              "Key and value heads; divides the attention heads.", width_of());
  const auto heads = [](const C& c) { return c.num_attention_heads; };
  if (absent == KeyHeads::as_heads) {
    key_heads.follows("`num_attention_heads`", heads);
  } else {
    key_heads.follows_where_null(heads);
  }
  table.add("head_dim", &C::head_dim, "Size of a head; even.", width_of(2))
      .follows("`hidden_size` / `num_attention_heads`",
               [](const C& c) { return c.hidden_size / c.num_attention_heads; });
  table.positions("max_position_embeddings", &C::max_position_embeddings);
  table.vocabulary(&C::vocab_size);
  table.choice("hidden_act", &C::hidden_act, {"silu"}, "The gate's activation.");
  table.add("rms_norm_eps", &C::rms_norm_eps, "Epsilon of the norms.", above(0));
  table.dropout("attention_dropout", &C::attention_dropout,
                "Dropout of the attention probabilities.");
  table.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
            above(0));
  table.add("tie_word_embeddings", &C::tie_word_embeddings, "The head is the token embedding.");
  add_rope_rows(table);
  return table;
}

const ConfigTable<LlamaConfig>& LlamaConfig::table() {
  static const ConfigTable<LlamaConfig> table = make_llama_table();
  return table;
}

const DecoderFamily& LlamaConfig::llama_family() {
  static const DecoderFamily family{"llama", "LlamaForCausalLM", "LlamaDecoderLayer",
                                    LlamaConfig::table};
  return family;
}

LlamaConfig parse_decoder(const DecoderFamily& family, const nlohmann::json& config,
                          const ConfigSource& source) {
  bool parameters = false;
  const nlohmann::json unified = unified_rope(config, parameters);
  const ConfigReader reader(unified, parameters ? with_rope_parameters(source) : source);
  LlamaConfig c = family.table().read(reader);
  c.family = &family;
  reader.check_key(reader.has("head_dim") || c.hidden_size % c.num_attention_heads == 0,
                   "hidden_size", "= {} is not a multiple of num_attention_heads = {}",
                   c.hidden_size, c.num_attention_heads);
  reader.check_key(c.num_attention_heads % c.num_key_value_heads == 0, "num_key_value_heads",
                   "= {} does not divide num_attention_heads = {}", c.num_key_value_heads,
                   c.num_attention_heads);
  reader.check_key(c.head_dim % 2 == 0 && c.head_dim > 0, "head_dim",
                   "= {} is odd; rotary positions turn pairs", c.head_dim);
  check_rope(reader, c);
  c.original = config.dump();
  return c;
}

LlamaConfig LlamaConfig::parse(const nlohmann::json& config, const ConfigSource& source) {
  LlamaConfig c = parse_decoder(llama_family(), config, source);
  c.output_bias = c.attention_bias;
  return c;
}

nlohmann::json LlamaConfig::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  family->table().write(*this, config);
  config.erase("rope_parameters");
  config["rope_scaling"] = scaling_to_json(rope_scaling);
  complete_config(config, family->model_class, family->model_type, weights);
  return config;
}

}  // namespace tessera::models
