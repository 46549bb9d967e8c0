// BERT's and MPNet's config.json.
#include "models/bert/bert_config.h"

#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {
namespace {

template <class C>
ConfigTable<C> make_shared_table() {
  ConfigTable<C> table{C()};
  table.add("hidden_size", &C::hidden_size, "Width; a multiple of `num_attention_heads`.",
            width_of());
  table.add("num_hidden_layers", &C::num_hidden_layers, "Layers.", layer_count());
  table.add("num_attention_heads", &C::num_attention_heads, "Attention heads.", width_of());
  table.add("intermediate_size", &C::intermediate_size, "Width of the feed-forward layer.",
            width_of());
  table.choice("hidden_act", &C::hidden_act, {"gelu", "gelu_new", "gelu_pytorch_tanh"},
               "`gelu` is the exact form, the others the tanh one.");
  table.dropout("hidden_dropout_prob", &C::hidden_dropout_prob,
                "Dropout of the embeddings and the residual branches.");
  table.dropout("attention_probs_dropout_prob", &C::attention_probs_dropout_prob,
                "Dropout of the attention probabilities.");
  table.positions("max_position_embeddings", &C::max_position_embeddings);
  table.vocabulary(&C::vocab_size);
  table.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
            above(0));
  table.add("layer_norm_eps", &C::layer_norm_eps, "Epsilon of the norms.", above(0));
  return table;
}

template <class C>
C read_shared(const ConfigReader& reader, const nlohmann::json& config) {
  C c = C::table().read(reader);
  reader.check_key(c.hidden_size % c.num_attention_heads == 0, "hidden_size",
                   "= {} is not a multiple of num_attention_heads = {}", c.hidden_size,
                   c.num_attention_heads);
  c.original = config.dump();
  return c;
}

}  // namespace

const ConfigTable<BertConfig>& BertConfig::table() {
  static const ConfigTable<BertConfig> table = [] {
    auto rows = make_shared_table<BertConfig>();
    rows.add("type_vocab_size", &BertConfig::type_vocab_size, "Kinds of segments.", width_of());
    return rows;
  }();
  return table;
}

const ConfigTable<MPNetConfig>& MPNetConfig::table() {
  static const ConfigTable<MPNetConfig> table = [] {
    auto rows = make_shared_table<MPNetConfig>();
    rows.add("relative_attention_num_buckets", &MPNetConfig::relative_attention_num_buckets,
             "Rows of the table of relative positions, of which 32 are used.", width_of(32));
    return rows;
  }();
  return table;
}

BertConfig BertConfig::parse(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  auto c = read_shared<BertConfig>(reader, config);
  reader.check_key(!reader.has("position_embedding_type") ||
                       reader.text("position_embedding_type") == "absolute",
                   "position_embedding_type", "is not supported; use absolute");
  reader.only("is_decoder", false);
  reader.only("add_cross_attention", false);
  return c;
}

MPNetConfig MPNetConfig::parse(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  auto c = read_shared<MPNetConfig>(reader, config);
  reader.check_key(
      c.max_position_embeddings > 2 && c.vocab_size > 1, "max_position_embeddings",
      "= {} with vocab_size = {}; the first two positions and the token 1 are for padding",
      c.max_position_embeddings, c.vocab_size);
  return c;
}

nlohmann::json BertConfig::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  table().write(*this, config);
  complete_config(config, "BertModel", "bert", weights);
  return config;
}

nlohmann::json MPNetConfig::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  table().write(*this, config);
  complete_config(config, "MPNetModel", "mpnet", weights);
  return config;
}

}  // namespace tessera::models
