// BERT's and MPNet's config.json.
#include "models/bert_config.h"

#include <nlohmann/json.hpp>

#include "models/config_reader.h"

namespace tessera::models {
namespace {

void read_shared(const ConfigReader& reader, const nlohmann::json& config, BertConfig& c) {
  c.vocab_size = reader.positive("vocab_size", c.vocab_size);
  c.hidden_size = reader.positive("hidden_size", c.hidden_size);
  c.num_hidden_layers = reader.positive("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = reader.positive("num_attention_heads", c.num_attention_heads);
  c.intermediate_size = reader.positive("intermediate_size", c.intermediate_size);
  c.hidden_act =
      reader.choice("hidden_act", {"gelu", "gelu_new", "gelu_pytorch_tanh"}, c.hidden_act);
  c.hidden_dropout_prob = reader.probability("hidden_dropout_prob", c.hidden_dropout_prob);
  c.attention_probs_dropout_prob =
      reader.probability("attention_probs_dropout_prob", c.attention_probs_dropout_prob);
  c.max_position_embeddings = reader.positive("max_position_embeddings", c.max_position_embeddings);
  c.initializer_range = reader.positive_number("initializer_range", c.initializer_range);
  c.layer_norm_eps = reader.positive_number("layer_norm_eps", c.layer_norm_eps);
  reader.check(c.hidden_size % c.num_attention_heads == 0,
               "hidden_size = {} is not a multiple of num_attention_heads = {}", c.hidden_size,
               c.num_attention_heads);
  c.original = config.dump();
}

nlohmann::json shared_json(const BertConfig& c) {
  nlohmann::json config = nlohmann::json::parse(c.original);
  config["vocab_size"] = c.vocab_size;
  config["hidden_size"] = c.hidden_size;
  config["num_hidden_layers"] = c.num_hidden_layers;
  config["num_attention_heads"] = c.num_attention_heads;
  config["intermediate_size"] = c.intermediate_size;
  config["hidden_act"] = c.hidden_act;
  config["hidden_dropout_prob"] = c.hidden_dropout_prob;
  config["attention_probs_dropout_prob"] = c.attention_probs_dropout_prob;
  config["max_position_embeddings"] = c.max_position_embeddings;
  config["initializer_range"] = c.initializer_range;
  config["layer_norm_eps"] = c.layer_norm_eps;
  return config;
}

}  // namespace

BertConfig BertConfig::parse_bert(const nlohmann::json& config, const std::string& source) {
  const ConfigReader reader(config, source);
  BertConfig c;
  read_shared(reader, config, c);
  c.type_vocab_size = reader.positive("type_vocab_size", c.type_vocab_size);
  (void)reader.choice("position_embedding_type", {"absolute"}, "absolute");
  reader.only("is_decoder", false);
  reader.only("add_cross_attention", false);
  return c;
}

BertConfig BertConfig::parse_mpnet(const nlohmann::json& config, const std::string& source) {
  const ConfigReader reader(config, source);
  BertConfig c;
  c.vocab_size = 30527;
  read_shared(reader, config, c);
  c.relative_attention_num_buckets =
      reader.positive("relative_attention_num_buckets", c.relative_attention_num_buckets);
  reader.check(c.relative_attention_num_buckets >= 32,
               "relative_attention_num_buckets = {}; distances have 32 buckets, so it is at least "
               "32",
               c.relative_attention_num_buckets);
  reader.check(c.max_position_embeddings > 2 && c.vocab_size > 1,
               "max_position_embeddings = {} and vocab_size = {}; the first two positions and the "
               "token 1 are padding's",
               c.max_position_embeddings, c.vocab_size);
  return c;
}

nlohmann::json BertConfig::bert_json(DType weights) const {
  nlohmann::json config = shared_json(*this);
  config["type_vocab_size"] = type_vocab_size;
  complete_config(config, "BertModel", "bert", weights);
  return config;
}

nlohmann::json BertConfig::mpnet_json(DType weights) const {
  nlohmann::json config = shared_json(*this);
  config["relative_attention_num_buckets"] = relative_attention_num_buckets;
  complete_config(config, "MPNetModel", "mpnet", weights);
  return config;
}

}  // namespace tessera::models
