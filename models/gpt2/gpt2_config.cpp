// GPT-2's config.json.
#include "models/gpt2/gpt2_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {
namespace {

ConfigTable<Gpt2Config> make_gpt2_table() {
  using C = Gpt2Config;
  ConfigTable<C> table;
  table.add("n_layer", &C::n_layer, "Layers.", layer_count());
  table.add("n_head", &C::n_head, "Attention heads.", width_of());
  table.add("n_embd", &C::n_embd, "Width; a multiple of `n_head`.", width_of());
  table.add("n_inner", &C::n_inner, "Width of the feed-forward layer.", width_of())
      .follows("4 x `n_embd`", [](const C& c) { return 4 * c.n_embd; });
  table.positions("n_positions", &C::n_positions);
  table.vocabulary(&C::vocab_size);
  table.choice("activation_function", &C::activation_function,
               {"gelu_new", "gelu_pytorch_tanh", "gelu"},
               "`gelu_new` is the tanh form, `gelu` the exact one.");
  table.add("layer_norm_epsilon", &C::layer_norm_epsilon, "Epsilon of the norms.", above(0));
  table.dropout("resid_pdrop", &C::resid_pdrop, "Dropout of the residual branches.");
  table.dropout("embd_pdrop", &C::embd_pdrop, "Dropout of the embeddings.");
  table.dropout("attn_pdrop", &C::attn_pdrop, "Dropout of the attention probabilities.");
  table.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
            above(0));
  table.add("tie_word_embeddings", &C::tie_word_embeddings, "The head is the token embedding.");
  table.add("scale_attn_weights", &C::scale_attn_weights,
            "Scores are divided by the root of the head size.");
  table.add("scale_attn_by_inverse_layer_idx", &C::scale_attn_by_inverse_layer_idx,
            "Scores are divided by the layer's number as well.");
  table.add("reorder_and_upcast_attn", &C::reorder_and_upcast_attn,
            "No effect: scores are always computed in fp32.");
  return table;
}

}  // namespace

const ConfigTable<Gpt2Config>& Gpt2Config::table() {
  static const ConfigTable<Gpt2Config> table = make_gpt2_table();
  return table;
}

Gpt2Config Gpt2Config::parse(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  Gpt2Config c = table().read(reader);
  reader.only("add_cross_attention", false);
  reader.check_key(c.n_embd % c.n_head == 0, "n_embd", "= {} is not a multiple of n_head = {}",
                   c.n_embd, c.n_head);
  c.original = config.dump();
  return c;
}

nlohmann::json Gpt2Config::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  table().write(*this, config);
  config["n_ctx"] = n_positions;
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
