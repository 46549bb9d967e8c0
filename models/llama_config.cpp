// Llama's config.json.
#include "models/llama_config.h"

#include <nlohmann/json.hpp>

#include "models/config_reader.h"

namespace tessera::models {
namespace {

struct Rope {
  double theta;
  RopeScaling scaling;
};

RopeScaling read_scaling(const nlohmann::json& config, const std::string& source,
                         std::int64_t positions) {
  const ConfigReader reader(config, source);
  RopeScaling scaling;
  // "type" is the spelling of the first configurations that had scaling.
  const std::string kind = reader.choice(reader.has("rope_type") ? "rope_type" : "type",
                                         {"default", "linear", "llama3"}, "default");
  if (kind == "default") return scaling;
  scaling.kind = kind == "linear" ? RopeScaling::Kind::linear : RopeScaling::Kind::llama3;
  scaling.factor = reader.positive_number("factor");
  if (scaling.kind == RopeScaling::Kind::linear) return scaling;
  scaling.low_freq_factor = reader.positive_number("low_freq_factor");
  scaling.high_freq_factor = reader.positive_number("high_freq_factor");
  scaling.original_max_position_embeddings =
      reader.positive("original_max_position_embeddings", positions);
  reader.check(scaling.high_freq_factor > scaling.low_freq_factor,
               "high_freq_factor = {} is not above low_freq_factor = {}", scaling.high_freq_factor,
               scaling.low_freq_factor);
  return scaling;
}

// rope_parameters, the newer spelling, holds theta and scaling in one object.
Rope read_rope(const ConfigReader& reader, const LlamaConfig& defaults) {
  Rope rope{reader.positive_number("rope_theta", defaults.rope_theta), {}};
  const nlohmann::json* parameters = reader.object("rope_parameters");
  const nlohmann::json* scaling = parameters ? parameters : reader.object("rope_scaling");
  const std::string place = reader.source() + (parameters ? ": rope_parameters" : ": rope_scaling");
  if (scaling != nullptr) {
    rope.scaling = read_scaling(*scaling, place, defaults.max_position_embeddings);
    rope.theta = ConfigReader(*scaling, place).positive_number("rope_theta", rope.theta);
  }
  return rope;
}

nlohmann::json scaling_to_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  }
  return nullptr;
}

}  // namespace

LlamaConfig LlamaConfig::parse(const nlohmann::json& config, const std::string& source) {
  const ConfigReader reader(config, source);
  LlamaConfig c;
  c.vocab_size = reader.positive("vocab_size", c.vocab_size);
  c.hidden_size = reader.positive("hidden_size", c.hidden_size);
  c.intermediate_size = reader.positive("intermediate_size", c.intermediate_size);
  c.num_hidden_layers = reader.positive("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = reader.positive("num_attention_heads", c.num_attention_heads);
  c.num_key_value_heads = reader.positive("num_key_value_heads", c.num_attention_heads);
  reader.check(reader.has("head_dim") || c.hidden_size % c.num_attention_heads == 0,
               "hidden_size = {} is not a multiple of num_attention_heads = {}", c.hidden_size,
               c.num_attention_heads);
  c.head_dim = reader.positive("head_dim", c.hidden_size / c.num_attention_heads);
  c.max_position_embeddings = reader.positive("max_position_embeddings", c.max_position_embeddings);
  c.rms_norm_eps = reader.positive_number("rms_norm_eps", c.rms_norm_eps);
  const Rope rope = read_rope(reader, c);
  c.rope_theta = rope.theta;
  c.rope_scaling = rope.scaling;
  c.attention_dropout = reader.probability("attention_dropout", c.attention_dropout);
  c.initializer_range = reader.positive_number("initializer_range", c.initializer_range);
  c.attention_bias = reader.flag("attention_bias", c.attention_bias);
  c.mlp_bias = reader.flag("mlp_bias", c.mlp_bias);
  c.tie_word_embeddings = reader.flag("tie_word_embeddings", c.tie_word_embeddings);
  (void)reader.choice("hidden_act", {"silu"}, "silu");
  reader.check(c.num_attention_heads % c.num_key_value_heads == 0,
               "num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
               c.num_attention_heads, c.num_key_value_heads);
  reader.check(c.head_dim % 2 == 0, "head_dim = {} is odd; rotary positions turn pairs",
               c.head_dim);
  c.original = config.dump();
  return c;
}

nlohmann::json LlamaConfig::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  config["vocab_size"] = vocab_size;
  config["hidden_size"] = hidden_size;
  config["intermediate_size"] = intermediate_size;
  config["num_hidden_layers"] = num_hidden_layers;
  config["num_attention_heads"] = num_attention_heads;
  config["num_key_value_heads"] = num_key_value_heads;
  config["head_dim"] = head_dim;
  config["max_position_embeddings"] = max_position_embeddings;
  config["rms_norm_eps"] = rms_norm_eps;
  config.erase("rope_parameters");
  config["rope_theta"] = rope_theta;
  config["rope_scaling"] = scaling_to_json(rope_scaling);
  config["attention_dropout"] = attention_dropout;
  config["initializer_range"] = initializer_range;
  config["attention_bias"] = attention_bias;
  config["mlp_bias"] = mlp_bias;
  config["tie_word_embeddings"] = tie_word_embeddings;
  config["hidden_act"] = "silu";
  complete_config(config, "LlamaForCausalLM", "llama", weights);
  return config;
}

}  // namespace tessera::models
