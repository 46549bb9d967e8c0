// The tables of CLIP's keys, and its two configurations within one.
#include "models/clip/clip_config.h"

#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"
#include "models/vit/activation.h"
#include "models/vit/image_config.h"

namespace tessera::models {
namespace {

using nlohmann::json;

template <class C>
ConfigTable<C> encoder_table() {
  ConfigTable<C> rows;
  rows.add("hidden_size", &C::hidden_size, "Width; a multiple of `num_attention_heads`.",
           width_of());
  rows.add("intermediate_size", &C::intermediate_size, "Width of the feed-forward layer.",
           width_of());
  rows.add("num_hidden_layers", &C::num_hidden_layers, "Layers.", layer_count());
  rows.add("num_attention_heads", &C::num_attention_heads, "Attention heads.", width_of());
  rows.choice("hidden_act", &C::hidden_act, activation_names(),
              "`quick_gelu` is x * sigmoid(1.702 x).");
  rows.add("layer_norm_eps", &C::layer_norm_eps, "Epsilon of the norms.", above(0));
  rows.dropout("attention_dropout", &C::attention_dropout,
               "Dropout of the attention probabilities.");
  rows.add("initializer_range", &C::initializer_range,
           "Deviation of the initial weights of patches and positions.", above(0));
  rows.add("initializer_factor", &C::initializer_factor,
           "Multiplies the deviations of the initial weights.", above(0));
  return rows;
}

// The source of an object within config.json, whose keys have its name in front.
ConfigSource within(const ConfigSource& source, const std::string& object) {
  const auto name_in = [source, object](const std::string& key) {
    return source.name(key.empty() ? object : object + "." + key);
  };
  return {[source, object](const std::string& key) { return source.where(object + "." + key); },
          name_in};
}

// The object `key`. Files of early versions may have a second one, KEY_dict, which replaces it.
json part_of(const ConfigReader& reader, const json& config, const std::string& key) {
  const std::string newer = key + "_dict";
  const std::string& name = reader.has(newer) ? newer : key;
  if (!reader.has(name)) return json::object();
  reader.check_key(config[name].is_object(), name, "is {}; it must be an object",
                   config[name].dump());
  return config[name];
}

template <class C>
C read_part(const json& part, const ConfigSource& source, const char* model_type) {
  const ConfigReader reader(part, source);
  C c = C::table().read(reader);
  reader.check_key(reader.text("model_type", model_type) == model_type, "model_type",
                   "is \"{}\"; \"{}\" is required here", reader.text("model_type", model_type),
                   model_type);
  reader.check_key(c.hidden_size % c.num_attention_heads == 0, "hidden_size",
                   "= {} is not a multiple of num_attention_heads = {}", c.hidden_size,
                   c.num_attention_heads);
  reader.check_key(!reader.has("pruned_heads") || part["pruned_heads"].empty(), "pruned_heads",
                   "is not supported; save the model with all its heads");
  reader.only("dropout", 0.0);  // of early files; transformers no longer has it
  reader.only("is_decoder", false);
  reader.only("add_cross_attention", false);
  return c;
}

void check_end_of_text(const json& part, const CLIPTextConfig& c, const ConfigSource& source) {
  const ConfigReader reader(part, source);
  reader.check_key(!reader.is_null("eos_token_id"), "eos_token_id",
                   "is null; the token at the end of a text is required");
  reader.check_key(c.eos_token_id < c.vocab_size, "eos_token_id",
                   "= {} is not a token of vocab_size = {}", c.eos_token_id, c.vocab_size);
}

template <class C>
json written_part(const C& c, json part, const char* model_type) {
  C::table().write(c, part);
  part["model_type"] = model_type;
  return part;
}

constexpr const char* text_type = "clip_text_model";
constexpr const char* vision_type = "clip_vision_model";

}  // namespace

const ConfigTable<CLIPTextConfig>& CLIPTextConfig::table() {
  using C = CLIPTextConfig;
  static const ConfigTable<C> table = [] {
    auto rows = encoder_table<C>();
    rows.vocabulary(&C::vocab_size);
    rows.positions("max_position_embeddings", &C::max_position_embeddings);
    rows.add("eos_token_id", &C::eos_token_id, "The token at the end of a text.", at_least(0));
    return rows;
  }();
  return table;
}

const ConfigTable<CLIPVisionConfig>& CLIPVisionConfig::table() {
  using C = CLIPVisionConfig;
  static const ConfigTable<C> table = [] {
    auto rows = encoder_table<C>();
    add_image_rows(rows);
    return rows;
  }();
  return table;
}

const ConfigTable<CLIPConfig>& CLIPConfig::table() {
  using C = CLIPConfig;
  static const ConfigTable<C> table = [] {
    ConfigTable<C> rows;
    rows.add("projection_dim", &C::projection_dim, "Width of the embeddings.", width_of());
    rows.add("logit_scale_init_value", &C::logit_scale_init_value,
             "The first logarithm of the factor of similarities.");
    rows.add("initializer_factor", &C::initializer_factor,
             "Multiplies the deviations of the initial projections.", above(0));
    return rows;
  }();
  return table;
}

CLIPConfig CLIPConfig::parse(const json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  CLIPConfig c = table().read(reader);
  reader.check_key(reader.text("model_type", "clip") == "clip", "model_type",
                   "is \"{}\"; \"clip\" is required here", reader.text("model_type", "clip"));
  const ConfigSource in_text = within(source, "text_config");
  const ConfigSource in_vision = within(source, "vision_config");
  const json text = part_of(reader, config, "text_config");
  const json vision = with_square_sizes(part_of(reader, config, "vision_config"), in_vision);
  c.text = read_part<CLIPTextConfig>(text, in_text, text_type);
  c.vision = read_part<CLIPVisionConfig>(vision, in_vision, vision_type);
  check_end_of_text(text, c.text, in_text);
  check_patches(ConfigReader(vision, in_vision), c.vision.image_size, c.vision.patch_size);
  json original = config;
  original["text_config"] = text;
  original["vision_config"] = vision;
  original.erase("text_config_dict");
  original.erase("vision_config_dict");
  c.original = original.dump();
  return c;
}

json CLIPConfig::to_json(DType weights) const {
  json config = json::parse(original);
  table().write(*this, config);
  config["text_config"] =
      written_part(text, config.value("text_config", json::object()), text_type);
  config["vision_config"] =
      written_part(vision, config.value("vision_config", json::object()), vision_type);
  name_model(config, "CLIPModel", "clip", weights);
  return config;
}

}  // namespace tessera::models
