// The table of ViT's keys, and the labels.
#include "models/vit/vit_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"
#include "models/vit/activation.h"
#include "models/vit/image_config.h"

namespace tessera::models {
namespace {

using nlohmann::json;

std::vector<std::string> numbered_labels(std::int64_t count) {
  std::vector<std::string> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(fmt::format("LABEL_{}", i));
  return labels;
}

// transformers writes id2label, an object of texts by number; `num_labels` is its short form.
std::vector<std::string> read_labels(const ConfigReader& reader, const json& config) {
  constexpr const char* key = "id2label";
  const std::int64_t two = 2;
  ConfigKey short_form;
  short_form.name = "num_labels";
  short_form.range = width_of();
  const json* count = reader.value(short_form);
  if (!reader.has(key)) return numbered_labels(count == nullptr ? two : count->get<std::int64_t>());
  const json& names = config[key];
  reader.check_key(names.is_object() && !names.empty(), key,
                   "must be an object with the name of each class by its number");
  reader.check_key(count == nullptr || *count == names.size(), short_form.name,
                   "= {} differs from the {} of id2label", count == nullptr ? "" : count->dump(),
                   names.size());
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto name = names.find(std::to_string(i));
    reader.check_key(name != names.end() && name->is_string(), key,
                     "has {} classes but no name of the class {}", names.size(), i);
    labels.push_back(name->get<std::string>());
  }
  return labels;
}

// Keys that change what ViT computes, which are not in transformers' own configurations of ViT.
void refuse_other_builds(const ConfigReader& reader, const json& config, const ViTConfig& c) {
  const std::int64_t head = c.hidden_size / c.num_attention_heads;
  reader.check_key(reader.positive("head_dim", head) == head, "head_dim",
                   "= {} is not supported; use {}, hidden_size / num_attention_heads",
                   reader.positive("head_dim", head), head);
  reader.check_key(!reader.has("pruned_heads") || config["pruned_heads"].empty(), "pruned_heads",
                   "is not supported; save the model with all its heads");
  reader.only("is_decoder", false);
  reader.only("add_cross_attention", false);
  reader.only("chunk_size_feed_forward", 0.0);
}

}  // namespace

const ConfigTable<ViTConfig>& ViTConfig::table() {
  using C = ViTConfig;
  static const ConfigTable<C> table = [] {
    ConfigTable<C> rows;
    rows.add("hidden_size", &C::hidden_size, "Width; a multiple of `num_attention_heads`.",
             width_of());
    rows.add("num_hidden_layers", &C::num_hidden_layers, "Layers.", layer_count());
    rows.add("num_attention_heads", &C::num_attention_heads, "Attention heads.", width_of());
    rows.add("intermediate_size", &C::intermediate_size, "Width of the feed-forward layer.",
             width_of());
    rows.choice("hidden_act", &C::hidden_act, activation_names(),
                "`gelu` is the exact form, `gelu_new`, `gelu_pytorch_tanh` and `gelu_fast` the "
                "tanh one.");
    rows.dropout("hidden_dropout_prob", &C::hidden_dropout_prob,
                 "Dropout of the embeddings and the residual branches.");
    rows.dropout("attention_probs_dropout_prob", &C::attention_probs_dropout_prob,
                 "Dropout of the attention probabilities.");
    rows.add("initializer_range", &C::initializer_range, "Deviation of the initial weights.",
             above(0));
    rows.add("layer_norm_eps", &C::layer_norm_eps, "Epsilon of the norms.", above(0));
    add_image_rows(rows);
    rows.add("qkv_bias", &C::qkv_bias, "Queries, keys and values have biases.");
    rows.add("pooler_output_size", &C::pooler_output_size, "Width of the pooler's result.",
             width_of())
        .follows("`hidden_size`", [](const C& c) { return json(c.hidden_size); });
    rows.choice("pooler_act", &C::pooler_act, activation_names(), "Activation of the pooler.");
    rows.choice("problem_type", &C::problem_type,
                {"regression", "single_label_classification", "multi_label_classification"},
                "The kind of labels.")
        .optional();
    return rows;
  }();
  return table;
}

ViTConfig ViTConfig::parse(const json& given, const ConfigSource& source) {
  const json config = with_square_sizes(given, source);
  const ConfigReader reader(config, source);
  ViTConfig c = table().read(reader);
  reader.check_key(reader.text("model_type", "vit") == "vit", "model_type",
                   "is \"{}\"; \"vit\" is required here", reader.text("model_type", "vit"));
  reader.check_key(c.hidden_size % c.num_attention_heads == 0, "hidden_size",
                   "= {} is not a multiple of num_attention_heads = {}", c.hidden_size,
                   c.num_attention_heads);
  check_patches(reader, c.image_size, c.patch_size);
  refuse_other_builds(reader, config, c);
  c.labels = read_labels(reader, config);
  c.original = config.dump();
  return c;
}

json ViTConfig::to_json(const std::string& model_class, DType weights) const {
  json config = json::parse(original);
  table().write(*this, config);
  json names = json::object(), numbers = json::object();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    names[std::to_string(i)] = labels[i];
    numbers[labels[i]] = i;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
  config.erase("num_labels");
  if (!problem_type.empty()) config["problem_type"] = problem_type;
  complete_config(config, model_class, "vit", weights);
  return config;
}

}  // namespace tessera::models
