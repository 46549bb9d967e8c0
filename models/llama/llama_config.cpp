// The config.json of every model of Llama's build.
#include "models/llama/llama_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"
#include "models/llama/experts_config.h"
#include "models/llama/rope_config.h"
#include "models/llama/window_config.h"

namespace tessera::models {
namespace {

void add_head_rows(ConfigTable<LlamaConfig>& table, const DecoderFamily& family) {
  using C = LlamaConfig;
  table.add("num_attention_heads", &C::num_attention_heads, "Attention heads.", width_of());
  auto& key_heads = table.add("num_key_value_heads", &C::num_key_value_heads,
                              "Key and value heads; divides the attention heads.", width_of());
  const auto heads = [](const C& c) { return c.num_attention_heads; };
  if (family.key_heads == KeyHeads::as_heads) {
    key_heads.follows("`num_attention_heads`", heads);
  } else {
    key_heads.follows_where_null(heads);
  }
  auto& head_size = table.add("head_dim", &C::head_dim, "Size of a head; even.", width_of(2));
  if (family.head_size == HeadSize::of_width) {
    head_size.follows("`hidden_size` / `num_attention_heads`",
                      [](const C& c) { return c.hidden_size / c.num_attention_heads; });
  }
}

void check_heads(const ConfigReader& reader, const LlamaConfig& c) {
  const bool derived = c.family->head_size == HeadSize::of_width && !reader.has("head_dim");
  reader.check_key(!derived || c.hidden_size % c.num_attention_heads == 0, "hidden_size",
                   "= {} is not a multiple of num_attention_heads = {}", c.hidden_size,
                   c.num_attention_heads);
  reader.check_key(c.num_attention_heads % c.num_key_value_heads == 0, "num_key_value_heads",
                   "= {} does not divide num_attention_heads = {}", c.num_key_value_heads,
                   c.num_attention_heads);
  reader.check_key(c.head_dim % 2 == 0 && c.head_dim > 0, "head_dim",
                   "= {} is odd; rotary positions turn pairs", c.head_dim);
  reader.check_key(c.rotary_dim() % 2 == 0 && c.rotary_dim() > 0, "partial_rotary_factor",
                   "= {} leaves {} of {} elements of a head to rotary positions, which turn pairs",
                   c.partial_rotary_factor, c.rotary_dim(), c.head_dim);
}

// Keys that change the model, and that this family or all families here do not have.
void refuse_other_models(const ConfigReader& reader, const nlohmann::json& config,
                         const LlamaConfig& c) {
  if (c.family->attention_bias == AttentionBias::none) reader.only("attention_bias", false);
  if (!c.family->has_mlp_bias) reader.only("mlp_bias", false);
  reader.only("use_sliding_window", false);
  reader.only("partial_rotary_factor", c.partial_rotary_factor);
  refuse_other_experts(reader, c);
  refuse_other_windows(reader, config, c);
}

// `layers` has 1 for a layer with rotary positions and 0 for one without.
std::vector<bool> rotary_layers(const ConfigReader& reader, const nlohmann::json& layers,
                                std::int64_t count) {
  reader.check_key(layers.is_array() && static_cast<std::int64_t>(layers.size()) >= count,
                   "no_rope_layers", "must be a list of 0 or 1 for each of {} layers", count);
  std::vector<bool> with_positions;
  for (const nlohmann::json& layer : layers) {
    const bool has_positions = layer == 1;
    reader.check_key(has_positions || layer == 0, "no_rope_layers", "has {}; it must have 0 or 1",
                     layer.dump());
    with_positions.push_back(has_positions);
  }
  return with_positions;
}

}  // namespace

ConfigTable<LlamaConfig> decoder_table(const DecoderFamily& family) {
  using C = LlamaConfig;
  C defaults = family.defaults();
  defaults.family = &family;
  // with_default_scaling() adds it, whole: a configuration with a scaling has no part of it.
  const RopeScaling scaling = std::exchange(defaults.rope_scaling, RopeScaling{});
  ConfigTable<C> table(defaults);
  table.add("hidden_size", &C::hidden_size, "Width.", width_of());
  table.add("intermediate_size", &C::intermediate_size, "Width of the feed-forward layer.",
            width_of());
  table.add("num_hidden_layers", &C::num_hidden_layers, "Layers.", layer_count());
  add_head_rows(table, family);
  table.positions("max_position_embeddings", &C::max_position_embeddings);
  table.vocabulary(&C::vocab_size);
  table.choice(family.activation_key, &C::hidden_act, {defaults.hidden_act},
               "The gate's activation.");
  table.add("rms_norm_eps", &C::rms_norm_eps, "Epsilon of the norms.", above(0));
  table.dropout("attention_dropout", &C::attention_dropout,
                "Dropout of the attention probabilities.");
  table.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
            above(0));
  table.add("tie_word_embeddings", &C::tie_word_embeddings, "The head is the token embedding.");
  add_rope_rows(table, family.rope_types, scaling);
  if (family.attention_bias == AttentionBias::by_key) {
    table.add("attention_bias", &C::attention_bias, "Biases in the attention's projections.");
  }
  if (family.has_mlp_bias) {
    table.add("mlp_bias", &C::mlp_bias, "Biases in the feed-forward layers.");
  }
  family.add_rows(table);
  return table;
}

LlamaConfig parse_decoder(const DecoderFamily& family, const nlohmann::json& config,
                          const ConfigSource& source) {
  bool parameters = false;
  nlohmann::json unified = unified_rope(unified_layer_ropes(config, source), parameters);
  unified = with_default_scaling(std::move(unified), family);
  unified = unified_experts(std::move(unified), family);
  const ConfigReader reader(unified, parameters ? with_rope_parameters(source) : source);
  LlamaConfig c = decoder_table(family).read(reader);
  check_heads(reader, c);
  check_rope(reader, c);
  if (family.experts) read_experts(reader, unified, c);
  refuse_other_models(reader, unified, c);
  if (c.no_rope_layer_interval > 0 && reader.has("no_rope_layers")) {
    c.no_rope_layers = rotary_layers(reader, unified["no_rope_layers"], c.num_hidden_layers);
  }
  read_windows(reader, unified, c);
  c.output_bias = c.attention_bias;
  if (family.attention_bias == AttentionBias::inputs) c.attention_bias = true;
  c.original = config.dump();
  return c;
}

nlohmann::json LlamaConfig::to_json(DType weights) const {
  nlohmann::json config = nlohmann::json::parse(original);
  decoder_table(*family).write(*this, config);
  config.erase("rope_parameters");
  if (family->experts) erase_other_spelling(config, *family);
  config["rope_scaling"] = scaling_to_json(rope_scaling, *family);
  if (family->lists_windows) write_layer_types(*this, config);
  complete_config(config, family->model_class, family->model_type, weights);
  // transformers' default may lie outside the vocabulary.
  if (!config.contains("pad_token_id")) config["pad_token_id"] = nullptr;
  return config;
}

std::int64_t LlamaConfig::rotary_dim() const {
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
}

bool LlamaConfig::has_rotary_positions(std::int64_t layer) const {
  if (!no_rope_layers.empty()) return no_rope_layers.at(static_cast<std::size_t>(layer));
  return no_rope_layer_interval == 0 || (layer + 1) % no_rope_layer_interval != 0;
}

bool LlamaConfig::sees_all(std::int64_t layer) const {
  if (!layers_with_window.empty()) return !layers_with_window.at(static_cast<std::size_t>(layer));
  return sliding_window_pattern > 0 && (layer + 1) % sliding_window_pattern == 0;
}

std::optional<std::int64_t> LlamaConfig::window_of(std::int64_t layer) const {
  return sees_all(layer) ? std::nullopt : sliding_window;
}

bool LlamaConfig::has_experts(std::int64_t layer) const {
  if (!family->experts || (layer + 1) % experts.decoder_sparse_step != 0) return false;
  const auto& dense = experts.mlp_only_layers;
  return std::find(dense.begin(), dense.end(), layer) == dense.end();
}

std::int64_t LlamaConfig::layers_with_experts() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < num_hidden_layers; ++layer)
    count += has_experts(layer) ? 1 : 0;
  return count;
}

}  // namespace tessera::models
