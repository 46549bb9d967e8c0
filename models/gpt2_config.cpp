// GPT-2's config.json.
#include "models/gpt2_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/config_reader.h"

namespace tessera::models {

Gpt2Config Gpt2Config::parse(const nlohmann::json& config, const std::string& source) {
  const ConfigReader reader(config, source);
  Gpt2Config c;
  c.vocab_size = reader.positive("vocab_size", c.vocab_size);
  c.n_positions = reader.positive("n_positions", c.n_positions);
  c.n_embd = reader.positive("n_embd", c.n_embd);
  c.n_layer = reader.positive("n_layer", c.n_layer);
  c.n_head = reader.positive("n_head", c.n_head);
  c.n_inner = reader.positive("n_inner", 4 * c.n_embd);
  c.activation_function = reader.choice(
      "activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu"}, c.activation_function);
  c.layer_norm_epsilon = reader.positive_number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.resid_pdrop = reader.probability("resid_pdrop", c.resid_pdrop);
  c.embd_pdrop = reader.probability("embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = reader.probability("attn_pdrop", c.attn_pdrop);
  c.initializer_range = reader.positive_number("initializer_range", c.initializer_range);
  c.scale_attn_weights = reader.flag("scale_attn_weights", c.scale_attn_weights);
  c.scale_attn_by_inverse_layer_idx =
      reader.flag("scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx);
  c.tie_word_embeddings = reader.flag("tie_word_embeddings", c.tie_word_embeddings);
  reader.only("add_cross_attention", false);
  // reorder_and_upcast_attn asks for fp32 scores, which is what the attention kernels always
  // compute.
  (void)reader.flag("reorder_and_upcast_attn", false);
  reader.check(c.n_embd % c.n_head == 0, "n_embd = {} is not a multiple of n_head = {}", c.n_embd,
               c.n_head);
  c.original = config.dump();
  return c;
}

nlohmann::json Gpt2Config::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  config["vocab_size"] = vocab_size;
  config["n_positions"] = n_positions;
  config["n_ctx"] = n_positions;
  config["n_embd"] = n_embd;
  config["n_layer"] = n_layer;
  config["n_head"] = n_head;
  config["n_inner"] = n_inner;
  config["activation_function"] = activation_function;
  config["layer_norm_epsilon"] = layer_norm_epsilon;
  config["resid_pdrop"] = resid_pdrop;
  config["embd_pdrop"] = embd_pdrop;
  config["attn_pdrop"] = attn_pdrop;
  config["initializer_range"] = initializer_range;
  config["scale_attn_weights"] = scale_attn_weights;
  config["scale_attn_by_inverse_layer_idx"] = scale_attn_by_inverse_layer_idx;
  config["tie_word_embeddings"] = tie_word_embeddings;
  complete_config(config, "GPT2LMHeadModel", "gpt2", weights);
  return config;
}

double Gpt2Config::attention_scale(std::int64_t layer) const {
  double scale = 1.0;
  const std::int64_t head_size = n_embd / n_head;
  if (scale_attn_weights) scale /= std::sqrt(static_cast<double>(head_size));
  if (scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
  return scale;
}

}  // namespace tessera::models
