// The tables of keys, and what they leave to check.
#include "models/bert/bert_config.h"

#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {
namespace {

constexpr std::int64_t positions_of_padding = 2;  // if its token is 1

struct SizeNames {
  std::string width, layers, heads, inner, activation, dropout, attention_dropout;
};

SizeNames shared_names() {
  return {"hidden_size", "num_hidden_layers",   "num_attention_heads",         "intermediate_size",
          "hidden_act",  "hidden_dropout_prob", "attention_probs_dropout_prob"};
}

SizeNames distilbert_names() {
  return {"dim", "n_layers", "n_heads", "hidden_dim", "activation", "dropout", "attention_dropout"};
}

template <class C>
ConfigTable<C> make_size_table(const SizeNames& names, const C& defaults,
                               const std::string& dropout_places, std::int64_t reserved) {
  ConfigTable<C> table{defaults};
  table.add(names.width, &C::hidden_size, "Width; a multiple of `" + names.heads + "`.",
            width_of());
  table.add(names.layers, &C::num_hidden_layers, "Layers.", layer_count());
  table.add(names.heads, &C::num_attention_heads, "Attention heads.", width_of());
  table.add(names.inner, &C::intermediate_size, "Width of the feed-forward layer.", width_of());
  table.choice(names.activation, &C::hidden_act, {"gelu", "gelu_new", "gelu_pytorch_tanh"},
               "`gelu` is the exact form, the others the tanh one.");
  table.dropout(names.dropout, &C::hidden_dropout_prob, "Dropout of " + dropout_places + ".");
  table.dropout(names.attention_dropout, &C::attention_probs_dropout_prob,
                "Dropout of the attention probabilities.");
  table.positions("max_position_embeddings", &C::max_position_embeddings).reserves(reserved);
  table.vocabulary(&C::vocab_size);
  table.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
            above(0));
  return table;
}

template <class C>
ConfigTable<C> make_shared_table(const C& defaults = C(), std::int64_t reserved = 0) {
  auto table = make_size_table(shared_names(), defaults, "the embeddings and the residual branches",
                               reserved);
  table.add("layer_norm_eps", &C::layer_norm_eps, "Epsilon of the norms.", above(0));
  return table;
}

template <class C>
C read_with(const ConfigTable<C>& table, const SizeNames& names, const ConfigReader& reader,
            const nlohmann::json& config) {
  C c = table.read(reader);
  reader.check_key(c.hidden_size % c.num_attention_heads == 0, names.width.c_str(),
                   "= {} is not a multiple of {} = {}", c.hidden_size, names.heads,
                   c.num_attention_heads);
  c.original = config.dump();
  return c;
}

template <class C>
C read_shared(const ConfigReader& reader, const nlohmann::json& config) {
  return read_with(C::table(), shared_names(), reader, config);
}

void require_encoder(const ConfigReader& reader) {
  reader.check_key(!reader.has("position_embedding_type") ||
                       reader.text("position_embedding_type") == "absolute",
                   "position_embedding_type", "is not supported; use absolute");
  reader.only("is_decoder", false);
  reader.only("add_cross_attention", false);
}

template <class C>
nlohmann::json written(const C& c, const ConfigTable<C>& table, const char* model_class,
                       const char* model_type, DType weights) {
  nlohmann::json config = nlohmann::json::parse(c.original);
  table.write(c, config);
  complete_config(config, model_class, model_type, weights);
  return config;
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
    auto rows = make_shared_table(MPNetConfig(), positions_of_padding);
    rows.add("relative_attention_num_buckets", &MPNetConfig::relative_attention_num_buckets,
             "Rows of the table of relative positions, of which 32 are used.", width_of(32));
    return rows;
  }();
  return table;
}

BertConfig BertConfig::parse(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  auto c = read_shared<BertConfig>(reader, config);
  require_encoder(reader);
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

ConfigTable<RobertaConfig> RobertaConfig::table(const RobertaFamily& family) {
  RobertaConfig defaults;
  defaults.family = &family;
  defaults.vocab_size = family.vocab_size;
  auto rows = make_shared_table(defaults, positions_of_padding);
  rows.add("type_vocab_size", &RobertaConfig::type_vocab_size, "Kinds of segments.", width_of());
  rows.add("pad_token_id", &RobertaConfig::pad_token_id,
           "The token of padding. The first position is the next number.", at_least(0));
  return rows;
}

RobertaConfig RobertaConfig::parse(const RobertaFamily& family, const nlohmann::json& config,
                                   const ConfigSource& source) {
  const ConfigReader reader(config, source);
  auto c = read_with(table(family), shared_names(), reader, config);
  reader.check_key(c.pad_token_id < c.vocab_size && c.max_position_embeddings > c.pad_token_id + 1,
                   "max_position_embeddings",
                   "= {} with vocab_size = {} and pad_token_id = {}; the first {} positions are "
                   "for padding",
                   c.max_position_embeddings, c.vocab_size, c.pad_token_id, c.pad_token_id + 1);
  require_encoder(reader);
  return c;
}

const ConfigTable<DistilBertConfig>& DistilBertConfig::table() {
  static const ConfigTable<DistilBertConfig> table = make_size_table(
      distilbert_names(), DistilBertConfig(), "the embeddings and the feed-forward layers", 0);
  return table;
}

DistilBertConfig DistilBertConfig::parse(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  return read_with(table(), distilbert_names(), reader, config);
}

nlohmann::json BertConfig::to_json(DType weights) const {
  return written(*this, table(), "BertModel", "bert", weights);
}

nlohmann::json MPNetConfig::to_json(DType weights) const {
  return written(*this, table(), "MPNetModel", "mpnet", weights);
}

nlohmann::json RobertaConfig::to_json(DType weights) const {
  return written(*this, table(*family), family->model_class, family->model_type, weights);
}

nlohmann::json DistilBertConfig::to_json(DType weights) const {
  return written(*this, table(), "DistilBertModel", "distilbert", weights);
}

}  // namespace tessera::models
