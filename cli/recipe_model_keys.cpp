// The keys of Hugging Face's config.json, by architecture. They end up in ModelRecipe::config under
// the same names.
#include <nlohmann/json.hpp>
#include <set>

#include "cli/recipe_schema.h"
#include "cli/recipe_values.h"
#include "engine/data/tokenizer.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::json;
using Default = std::function<Json(const Recipe&)>;

struct ConfigKey {
  std::string architecture;
  std::string name;  // "rope_scaling.factor" is a key in an object
  std::string help;
};

Json::json_pointer pointer_to(const std::string& name) {
  std::string path = "/" + name;
  for (char& c : path) {
    if (c == '.') c = '/';
  }
  return Json::json_pointer(path);
}

RecipeKey base(const ConfigKey& config_key) {
  RecipeKey row;
  row.name = "model." + config_key.name;
  row.help = config_key.help;
  row.architecture = config_key.architecture;
  row.optional = true;
  const Json::json_pointer pointer = pointer_to(config_key.name);
  row.write = [pointer](const Recipe& recipe) -> Json {
    return recipe.model.config.contains(pointer) ? recipe.model.config.at(pointer) : Json();
  };
  return row;
}

// The default may depend on other keys, so it is filled in when all are read.
RecipeKey with_default(RecipeKey row, const Default& fallback, std::string fallback_text) {
  row.fallback = std::move(fallback_text);
  const Json::json_pointer pointer = pointer_to(row.name.substr(std::string_view("model.").size()));
  const std::string architecture = row.architecture;
  row.complete = [=](Recipe& recipe) {
    Json& config = recipe.model.config;
    if (!recipe.model.pretrained && recipe.model.architecture == architecture &&
        !config.contains(pointer)) {
      config[pointer] = fallback(recipe);
    }
  };
  return row;
}

template <class T>
RecipeKey typed(const ConfigKey& config_key, Range range) {
  RecipeKey row = base(config_key);
  row.type = std::is_same_v<T, bool>     ? "true \\| false"
             : std::is_same_v<T, double> ? "number"
                                         : "whole number";
  row.range = range.text();
  const std::string name = row.name;
  const Json::json_pointer pointer = pointer_to(config_key.name);
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if constexpr (std::is_same_v<T, bool>) {
      recipe.model.config[pointer] = read_bool(node, name);
    } else if constexpr (std::is_same_v<T, double>) {
      const double value = read_number(node, name);
      check_range(node, name, range, value);
      recipe.model.config[pointer] = value;
    } else {
      const std::int64_t value = read_integer(node, name);
      check_range(node, name, range, static_cast<double>(value));
      recipe.model.config[pointer] = value;
    }
  };
  return row;
}

template <class T>
RecipeKey fixed_default(const ConfigKey& config_key, T value, Range range = {}) {
  return with_default(
      typed<T>(config_key, range), [value](const Recipe&) { return Json(value); },
      Json(value).dump());
}

template <class T>
RecipeKey derived(const ConfigKey& config_key, const Default& fallback, std::string text,
                  Range range) {
  return with_default(typed<T>(config_key, range), fallback, std::move(text));
}

RecipeKey named(const ConfigKey& config_key, const std::vector<Choice<std::string>>& choices,
                std::optional<std::string> fallback) {
  RecipeKey row = base(config_key);
  const std::string name = row.name;
  const Json::json_pointer pointer = pointer_to(config_key.name);
  for (const Choice<std::string>& one : choices) {
    row.type += (row.type.empty() ? "" : " \\| ") + std::string(one.name);
  }
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    recipe.model.config[pointer] = read_choice(node, name, choices);
  };
  if (!fallback) {
    row.fallback = "none";
    return row;
  }
  return with_default(
      std::move(row), [fallback](const Recipe&) { return Json(*fallback); }, *fallback);
}

Json config_value(const Recipe& recipe, const char* name) {
  return recipe.model.config.at(name);
}

RecipeKey dropout_rate(const ConfigKey& config_key) {
  return derived<double>(
      config_key, [](const Recipe& recipe) { return Json(recipe.model.dropout); }, "`dropout`",
      from_up_to(0, 1));
}

RecipeKey no_default(RecipeKey row) {
  row.fallback = "none";
  return row;
}

const std::int64_t tokens_of_bytes = ByteTokenizer().vocabulary_size();

RecipeKey vocabulary(const std::string& architecture) {
  return derived<std::int64_t>(
      {architecture, "vocab_size", "Tokens in the vocabulary."},
      [](const Recipe&) { return Json(tokens_of_bytes); }, "the tokenizer's", at_least(1));
}

RecipeKey positions(const std::string& architecture, const std::string& name) {
  return derived<std::int64_t>(
      {architecture, name, "The longest sequence."},
      [](const Recipe& recipe) { return Json(recipe.model.seq_len); }, "`seq_len`", at_least(1));
}

std::vector<RecipeKey> gpt2_keys() {
  const auto describe_key = [](const char* name, const char* help) {
    return ConfigKey{"gpt2", name, help};
  };
  return {
      fixed_default<std::int64_t>(describe_key("n_layer", "Layers."), 12, at_least(1)),
      fixed_default<std::int64_t>(describe_key("n_head", "Attention heads."), 12, at_least(1)),
      fixed_default<std::int64_t>(describe_key("n_embd", "Width; a multiple of `n_head`."), 768,
                                  at_least(1)),
      derived<std::int64_t>(
          describe_key("n_inner", "Width of the feed-forward layer."),
          [](const Recipe& recipe) {
            return Json(4 * config_value(recipe, "n_embd").get<std::int64_t>());
          },
          "4 x `n_embd`", at_least(1)),
      positions("gpt2", "n_positions"),
      vocabulary("gpt2"),
      named(
          describe_key("activation_function", "`gelu_new` is the tanh form, `gelu` the exact one."),
          {{"gelu_new", "gelu_new"}, {"gelu_pytorch_tanh", "gelu_pytorch_tanh"}, {"gelu", "gelu"}},
          "gelu_new"),
      fixed_default<double>(describe_key("layer_norm_epsilon", "Epsilon of the norms."), 1e-5,
                            above(0)),
      dropout_rate(describe_key("resid_pdrop", "Dropout of the residual branches.")),
      dropout_rate(describe_key("embd_pdrop", "Dropout of the embeddings.")),
      dropout_rate(describe_key("attn_pdrop", "Dropout of the attention probabilities.")),
      fixed_default<double>(describe_key("initializer_range", "Deviation of the initial weights."),
                            0.02, above(0)),
      fixed_default<bool>(describe_key("tie_word_embeddings", "The head is the token embedding."),
                          true),
      fixed_default<bool>(
          describe_key("scale_attn_weights", "Scores are divided by the root of the head size."),
          true),
      fixed_default<bool>(describe_key("scale_attn_by_inverse_layer_idx",
                                       "Scores are divided by the layer's number as well."),
                          false),
      fixed_default<bool>(
          describe_key("reorder_and_upcast_attn", "Scores in fp32, as they are here in any case."),
          false),
  };
}

std::vector<RecipeKey> llama_rope_keys() {
  const auto describe_key = [](const char* name, const char* help) {
    return ConfigKey{"llama", name, help};
  };
  return {
      fixed_default<double>(describe_key("rope_theta", "Base of the rotary frequencies."), 10000.0,
                            above(0)),
      named(describe_key("rope_scaling.rope_type",
                         "`linear` needs `factor`, `llama3` the four keys below."),
            {{"default", "default"}, {"linear", "linear"}, {"llama3", "llama3"}}, std::nullopt),
      no_default(typed<double>(
          describe_key("rope_scaling.factor", "Stretch of the low frequencies."), at_least(1))),
      no_default(typed<double>(
          describe_key("rope_scaling.low_freq_factor", "Where low frequencies end."), above(0))),
      no_default(typed<double>(
          describe_key("rope_scaling.high_freq_factor", "Where high frequencies begin."),
          above(0))),
      no_default(typed<std::int64_t>(describe_key("rope_scaling.original_max_position_embeddings",
                                                  "Positions before the stretch."),
                                     at_least(1))),
  };
}

std::vector<RecipeKey> llama_keys() {
  const auto describe_key = [](const char* name, const char* help) {
    return ConfigKey{"llama", name, help};
  };
  std::vector<RecipeKey> keys = {
      fixed_default<std::int64_t>(describe_key("hidden_size", "Width."), 4096, at_least(1)),
      fixed_default<std::int64_t>(
          describe_key("intermediate_size", "Width of the feed-forward layer."), 11008,
          at_least(1)),
      fixed_default<std::int64_t>(describe_key("num_hidden_layers", "Layers."), 32, at_least(1)),
      fixed_default<std::int64_t>(describe_key("num_attention_heads", "Attention heads."), 32,
                                  at_least(1)),
      derived<std::int64_t>(
          describe_key("num_key_value_heads", "Key and value heads; divides the attention heads."),
          [](const Recipe& recipe) { return config_value(recipe, "num_attention_heads"); },
          "`num_attention_heads`", at_least(1)),
      derived<std::int64_t>(
          describe_key("head_dim", "Size of a head; even."),
          [](const Recipe& recipe) {
            return Json(config_value(recipe, "hidden_size").get<std::int64_t>() /
                        config_value(recipe, "num_attention_heads").get<std::int64_t>());
          },
          "`hidden_size` / `num_attention_heads`", at_least(2)),
      positions("llama", "max_position_embeddings"),
      vocabulary("llama"),
      named(describe_key("hidden_act", "The gate's activation."), {{"silu", "silu"}}, "silu"),
      fixed_default<double>(describe_key("rms_norm_eps", "Epsilon of the norms."), 1e-6, above(0)),
      dropout_rate(describe_key("attention_dropout", "Dropout of the attention probabilities.")),
      fixed_default<double>(describe_key("initializer_range", "Deviation of the initial weights."),
                            0.02, above(0)),
      fixed_default<bool>(describe_key("tie_word_embeddings", "The head is the token embedding."),
                          false),
      fixed_default<bool>(describe_key("attention_bias", "Biases in the attention's projections."),
                          false),
      fixed_default<bool>(describe_key("mlp_bias", "Biases in the feed-forward layers."), false),
  };
  for (RecipeKey& row : llama_rope_keys()) keys.push_back(std::move(row));
  return keys;
}

}  // namespace

std::vector<RecipeKey> model_config_keys() {
  std::vector<RecipeKey> keys = gpt2_keys();
  for (RecipeKey& row : llama_keys()) keys.push_back(std::move(row));
  return keys;
}

}  // namespace tessera::cli
