// Reads the arguments by their names in Megatron-LM's parser.
#include "checkpoint/formats/megatron/megatron_model.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr std::int64_t largest_size = std::int64_t{1} << 31;
constexpr std::int64_t most_layers = 1 << 14;
constexpr std::int64_t most_heads = 1 << 16;
constexpr std::int64_t largest_head = 1 << 16;

// An argument that must be off, or have one value, for the models that are read.
struct OnlyArgument {
  const char* name;
  json value;  // besides null and a missing one
};

const std::vector<OnlyArgument>& only_arguments() {
  static const std::vector<OnlyArgument> list{
      {"multi_latent_attention", false},
      {"rotary_interleaved", false},
      {"rotary_percent", 1.0},
      {"apply_layernorm_1p", false},
      {"apply_residual_connection_post_layernorm", false},
      {"squared_relu", false},
      {"quick_geglu", false},
      {"attention_output_gate", false},
      {"heterogeneous_layers_config_path", nullptr},
      {"no_rope_freq", nullptr},
      {"window_size", nullptr},
      {"softmax_type", "vanilla"},
  };
  return list;
}

class ArgumentReader {
 public:
  ArgumentReader(const json& values, const std::string& source)
      : values_(values), source_(source) {}

  // Null if there is none of the names.
  [[nodiscard]] json value(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const auto found = values_.find(name);
      if (found != values_.end() && !found->is_null()) return *found;
    }
    return nullptr;
  }

  [[nodiscard]] std::int64_t size(std::initializer_list<const char*> names,
                                  std::int64_t otherwise = 0) const {
    const json found = value(names);
    if (found.is_null() && otherwise > 0) return otherwise;
    const bool fits = found.is_number_integer() && found > 0 && found < largest_size;
    TESSERA_CHECK(fits, ErrorCode::checkpoint, "{}: {} is {}; it must be a size of the model",
                  source_, *names.begin(), shown(found.dump(-1, ' ', true)));
    return found.get<std::int64_t>();
  }

  [[nodiscard]] double real(std::initializer_list<const char*> names, double otherwise) const {
    const json found = value(names);
    if (found.is_null()) return otherwise;
    TESSERA_CHECK(found.is_number() && std::isfinite(found.get<double>()), ErrorCode::checkpoint,
                  "{}: {} is {}; it must be a number", source_, *names.begin(),
                  shown(found.dump(-1, ' ', true)));
    return found.get<double>();
  }

  [[nodiscard]] bool is_set(std::initializer_list<const char*> names, bool otherwise) const {
    const json found = value(names);
    if (found.is_null()) return otherwise;
    TESSERA_CHECK(found.is_boolean(), ErrorCode::checkpoint,
                  "{}: {} is {}; it must be True or False", source_, *names.begin(),
                  shown(found.dump(-1, ' ', true)));
    return found.get<bool>();
  }

  [[nodiscard]] std::string text(std::initializer_list<const char*> names,
                                 const char* otherwise) const {
    const json found = value(names);
    return found.is_string() ? found.get<std::string>() : otherwise;
  }

  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::checkpoint, "{}: {}", source_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void refuse_other_models() const {
    check(value({"num_experts"}).is_null(),
          "num_experts is {}: Megatron's mixtures of experts are not read",
          value({"num_experts"}).dump());
    for (const OnlyArgument& only : only_arguments()) {
      const json found = value({only.name});
      check(found.is_null() || found == only.value,
            "{} is {}, a model that is not read here: only GPT-2 and models of Llama's build are",
            only.name, shown(found.dump(-1, ' ', true)));
    }
  }

 private:
  const json& values_;
  const std::string& source_;
};

void check_heads(const ArgumentReader& args, const MegatronModel& model) {
  args.check(
      model.layers <= most_layers && model.heads <= most_heads && model.head_size <= largest_head,
      "{} layers of {} heads of {}: no model is so large", model.layers, model.heads,
      model.head_size);
  args.check(model.heads % model.key_heads == 0,
             "{} groups of key heads do not divide {} query heads", model.key_heads, model.heads);
}

void read_heads(const ArgumentReader& args, std::int64_t width, MegatronModel& model) {
  model.heads = args.size({"num_attention_heads"});
  const bool grouped = args.is_set({"group_query_attention"}, false);
  model.key_heads = grouped ? args.size({"num_query_groups"}) : model.heads;
  model.head_size = args.size({"kv_channels"}, std::max<std::int64_t>(width / model.heads, 1));
  check_heads(args, model);
}

void read_vocabulary(const ArgumentReader& args, MegatronModel& model) {
  if (args.value({"vocab_size"}).is_null()) return;
  // This tokenizer has one token more, for the end of a document.
  const bool with_end = args.text({"tokenizer_type"}, "") == "NullTokenizer";
  model.vocabulary = args.size({"vocab_size"}) + (with_end ? 1 : 0);
}

json gpt2_config(const ArgumentReader& args, std::int64_t width, const MegatronModel& model) {
  args.check(args.is_set({"add_bias_linear"}, true),
             "add_bias_linear is False: GPT-2's layers have biases");
  args.check(model.key_heads == model.heads, "group_query_attention is True, which GPT-2 has not");
  args.check(model.heads * model.head_size == width,
             "kv_channels = {} is not hidden_size / num_attention_heads, as GPT-2 has it",
             model.head_size);
  args.check(!args.is_set({"qk_layernorm"}, false), "qk_layernorm is True, which GPT-2 has not");
  // Megatron's fused GELU is the one by tanh.
  const bool by_tanh =
      args.is_set({"openai_gelu"}, false) || args.is_set({"bias_gelu_fusion"}, true);
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_layer", model.layers},
          {"n_embd", width},
          {"n_head", model.heads},
          {"n_inner", args.size({"ffn_hidden_size"}, 4 * width)},
          {"n_positions", args.size({"max_position_embeddings", "seq_length"})},
          {"activation_function", by_tanh ? "gelu_new" : "gelu"},
          {"layer_norm_epsilon", args.real({"norm_epsilon", "layernorm_epsilon"}, 1e-5)},
          {"resid_pdrop", args.real({"hidden_dropout"}, 0.1)},
          {"embd_pdrop", args.real({"hidden_dropout"}, 0.1)},
          {"attn_pdrop", args.real({"attention_dropout"}, 0.1)},
          {"initializer_range", args.real({"init_method_std"}, 0.02)}};
}

json rope_scaling_of(const ArgumentReader& args) {
  const double factor = args.real({"rotary_seq_len_interpolation_factor"}, 1);
  const bool llama3 = args.is_set({"use_rope_scaling"}, false);
  args.check(!llama3 || factor == 1,
             "use_rope_scaling and rotary_seq_len_interpolation_factor are both set");
  if (llama3) {
    return {{"rope_type", "llama3"},
            {"factor", args.real({"rope_scaling_factor"}, 8)},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192}};
  }
  if (factor == 1) return nullptr;
  return {{"rope_type", "linear"}, {"factor", factor}};
}

json llama_config(const ArgumentReader& args, std::int64_t width, const MegatronModel& model) {
  const bool biases = args.is_set({"add_bias_linear"}, true);
  const bool input_biases = biases || args.is_set({"add_qkv_bias"}, false);
  const bool head_norms = args.is_set({"qk_layernorm"}, false);
  args.check(!head_norms || !input_biases,
             "qk_layernorm is True beside biases of the attention, which no model here has");
  const char* const type = head_norms ? "qwen3" : input_biases && !biases ? "qwen2" : "llama";
  const char* const model_class = head_norms                ? "Qwen3ForCausalLM"
                                  : input_biases && !biases ? "Qwen2ForCausalLM"
                                                            : "LlamaForCausalLM";
  json config{{"architectures", {model_class}},
              {"model_type", type},
              {"num_hidden_layers", model.layers},
              {"hidden_size", width},
              {"intermediate_size", args.size({"ffn_hidden_size"})},
              {"num_attention_heads", model.heads},
              {"num_key_value_heads", model.key_heads},
              {"head_dim", model.head_size},
              {"max_position_embeddings", args.size({"max_position_embeddings", "seq_length"})},
              {"hidden_act", "silu"},
              {"rms_norm_eps", args.real({"norm_epsilon", "layernorm_epsilon"}, 1e-5)},
              {"rope_theta", args.real({"rotary_base"}, 10000)},
              {"rope_scaling", rope_scaling_of(args)},
              {"attention_dropout", args.real({"attention_dropout"}, 0)},
              {"initializer_range", args.real({"init_method_std"}, 0.02)}};
  if (std::string(type) != "qwen2") config["attention_bias"] = biases;
  if (std::string(type) == "llama") config["mlp_bias"] = biases;
  return config;
}

}  // namespace

MegatronModel megatron_model_of_args(const json& values, const std::string& source) {
  const ArgumentReader args(values, source);
  args.refuse_other_models();
  MegatronModel model;
  model.layers = args.size({"num_layers"});
  const std::int64_t width = args.size({"hidden_size"});
  read_heads(args, width, model);
  read_vocabulary(args, model);
  model.tied = !args.is_set({"untie_embeddings_and_output_weights"}, false);
  const std::string norm = args.text({"normalization"}, "LayerNorm");
  const std::string positions = args.text({"position_embedding_type"}, "learned_absolute");
  const bool gated = args.is_set({"swiglu", "gated_linear_unit"}, false);
  model.is_gpt2 = norm == "LayerNorm" && positions == "learned_absolute" && !gated;
  args.check(
      model.is_gpt2 || (norm == "RMSNorm" && positions == "rope" && gated),
      "normalization is {}, position_embedding_type {} and swiglu {}: only GPT-2 (LayerNorm, "
      "learned_absolute, False) and models of Llama's build (RMSNorm, rope, True) are read",
      shown(norm), shown(positions), gated ? "True" : "False");
  model.config = model.is_gpt2 ? gpt2_config(args, width, model) : llama_config(args, width, model);
  model.config["tie_word_embeddings"] = model.tied;
  return model;
}

MegatronModel megatron_model_of_config(const json& values, const std::string& source) {
  const ArgumentReader keys(values, source);
  MegatronModel model;
  const std::string type = keys.text({"model_type"}, "");
  model.is_gpt2 = type == "gpt2";
  const bool known = model.is_gpt2 || type == "llama" || type == "mistral" || type == "qwen2" ||
                     type == "qwen3" || type == "smollm3";
  keys.check(known,
             "model_type {} is none that is read from Megatron's folders: gpt2, llama, "
             "mistral, qwen2, qwen3, smollm3",
             shown(type));
  model.layers = keys.size({"num_hidden_layers", "n_layer"});
  const std::int64_t width = keys.size({"hidden_size", "n_embd"});
  model.heads = keys.size({"num_attention_heads", "n_head"});
  model.key_heads = keys.size({"num_key_value_heads"}, model.heads);
  model.head_size = keys.size({"head_dim"}, std::max<std::int64_t>(width / model.heads, 1));
  check_heads(keys, model);
  model.vocabulary = keys.size({"vocab_size"});
  // The defaults of transformers.
  model.tied = keys.is_set({"tie_word_embeddings"}, model.is_gpt2 || type == "smollm3");
  model.config = values;
  return model;
}

}  // namespace tessera::checkpoint::formats
