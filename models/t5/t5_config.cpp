// The tables of T5's keys.
#include "models/t5/t5_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {

namespace {

// The keys of the encoder, which a decoder shares.
template <class C>
void add_stack_rows(ConfigTable<C>& rows) {
  rows.add("d_model", &C::d_model, "Width.", width_of());
  rows.add("num_layers", &C::num_layers, "Layers.", layer_count());
  rows.add("num_heads", &C::num_heads, "Attention heads.", width_of());
  rows.add("d_kv", &C::d_kv, "Elements of a head.", width_of());
  rows.add("d_ff", &C::d_ff, "Width of the feed-forward layer.", width_of());
  rows.choice("feed_forward_proj", &C::feed_forward_proj, {"relu", "gated-gelu"},
              "`gated-gelu` is that of T5 1.1, with the tanh form.");
  rows.add("relative_attention_num_buckets", &C::relative_attention_num_buckets,
           "Rows of the table of distances, half of them for each direction.", width_of(4));
  rows.add("relative_attention_max_distance", &C::relative_attention_max_distance,
           "Keys from this distance on share a row of the table.", at_least(2));
  rows.dropout("dropout_rate", &C::dropout_rate,
               "Dropout of the embeddings, the attention probabilities, the feed-forward layers, "
               "the residual branches and the result.");
  rows.positions("n_positions", &C::n_positions);
  rows.vocabulary(&C::vocab_size);
  rows.add("layer_norm_epsilon", &C::layer_norm_epsilon, "Epsilon of the norms.", above(0));
  rows.add("initializer_factor", &C::initializer_factor,
           "Multiplies the deviations of the initial weights.", above(0));
}

// Checks keys of a stack that must fit one another. A table of distances has as many rows for a
// direction as the number of buckets divided by `directions`; half of them are for one distance
// each, and the others need a larger distance. transformers also reads the keys that it derives
// from feed_forward_proj.
void check_stack(const ConfigReader& reader, const T5Config& c, std::int64_t directions) {
  reader.check_key(c.relative_attention_num_buckets % 4 == 0, "relative_attention_num_buckets",
                   "= {} is not a multiple of 4", c.relative_attention_num_buckets);
  const std::int64_t of_one = c.relative_attention_num_buckets / (2 * directions);
  reader.check_key(c.relative_attention_max_distance > of_one, "relative_attention_max_distance",
                   "= {} is not above {} of relative_attention_num_buckets = {}",
                   c.relative_attention_max_distance, directions == 2 ? "a quarter" : "half",
                   c.relative_attention_num_buckets);
  const std::string activation = c.is_gated() ? "gelu_new" : "relu";
  const std::string given = reader.text("dense_act_fn", activation);
  reader.check_key(given == activation, "dense_act_fn",
                   "= \"{}\" is not the activation of feed_forward_proj = \"{}\", \"{}\"", given,
                   c.feed_forward_proj, activation);
  reader.only("is_gated_act", c.is_gated());
  reader.only("is_decoder", false);
}

// True if the head is the token table.
bool is_tied(const ConfigReader& reader) {
  const bool tied = reader.flag("tie_word_embeddings", true);
  const bool scales = reader.flag("scale_decoder_outputs", tied);
  reader.check_key(tied || !scales, "scale_decoder_outputs",
                   "= true beside tie_word_embeddings = false is not supported; use false");
  return scales;
}

std::vector<std::int64_t> token_list(const ConfigReader& reader, const nlohmann::json& config,
                                     const char* key, std::int64_t vocabulary) {
  const nlohmann::json& given = config[key];
  if (given.is_null()) return {};
  std::vector<std::int64_t> tokens;
  for (const nlohmann::json& token : given.is_array() ? given : nlohmann::json::array({given})) {
    reader.check_key(token.is_number_integer() && token >= 0 && token < vocabulary, key,
                     "has {}; it must have tokens below vocab_size = {}", token.dump(), vocabulary);
    tokens.push_back(token.get<std::int64_t>());
  }
  return tokens;
}

}  // namespace

const ConfigTable<T5Config>& T5Config::table() {
  static const ConfigTable<T5Config> table = [] {
    ConfigTable<T5Config> rows;
    add_stack_rows(rows);
    return rows;
  }();
  return table;
}

T5Config T5Config::parse(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  T5Config c = table().read(reader);
  check_stack(reader, c, 2);
  c.original = config.dump();
  return c;
}

nlohmann::json T5Config::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  table().write(*this, config);
  complete_config(config, "T5EncoderModel", "t5", weights);
  return config;
}

const ConfigTable<T5GenerationConfig>& T5GenerationConfig::table() {
  using C = T5GenerationConfig;
  static const ConfigTable<C> table = [] {
    ConfigTable<C> rows;
    add_stack_rows(rows);
    rows.add("num_decoder_layers", &C::num_decoder_layers, "Layers of the decoder.", layer_count())
        .follows("`num_layers`", [](const C& c) { return c.num_layers; });
    rows.add("pad_token_id", &C::pad_token_id, "The decoder's input where a label is missing.",
             at_least(0));
    rows.add("decoder_start_token_id", &C::decoder_start_token_id, "The decoder's first input.",
             at_least(0))
        .follows("`pad_token_id`", [](const C& c) { return c.pad_token_id; });
    return rows;
  }();
  return table;
}

T5GenerationConfig T5GenerationConfig::parse(const nlohmann::json& config,
                                             const ConfigSource& source) {
  const ConfigReader reader(config, source);
  T5GenerationConfig c = table().read(reader);
  check_stack(reader, c, 1);  // of the decoder, which sees earlier keys alone
  reader.only("is_encoder_decoder", true);
  c.tied = is_tied(reader);
  for (const auto& [key, token] : {std::pair{"pad_token_id", c.pad_token_id},
                                   {"decoder_start_token_id", c.decoder_start_token_id}}) {
    reader.check_key(token < c.vocab_size, key, "= {} is not below vocab_size = {}", token,
                     c.vocab_size);
  }
  if (config.contains("eos_token_id")) {
    c.eos_token_ids = token_list(reader, config, "eos_token_id", c.vocab_size);
  }
  c.original = config.dump();
  return c;
}

nlohmann::json T5GenerationConfig::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  table().write(*this, config);
  config["tie_word_embeddings"] = tied;
  config["scale_decoder_outputs"] = tied;
  config["is_encoder_decoder"] = true;
  if (!config.contains("eos_token_id")) config["eos_token_id"] = eos_token_ids.front();
  complete_config(config, "T5ForConditionalGeneration", "t5", weights);
  return config;
}

}  // namespace tessera::models
