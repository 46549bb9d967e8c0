// The configuration of Llama and of the models of its build, as in Hugging Face's config.json, with
// both spellings of rotary scaling. decoder_families_config.h lists the models.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "models/config/config_key.h"
#include "models/llama/rope_scaling.h"

namespace tessera::models {

template <class Config>
class ConfigTable;
struct DecoderFamily;

// The mixtures of experts of a family that has them.
struct ExpertsConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 2;
  std::int64_t moe_intermediate_size = 0;  // of an expert; 0: intermediate_size
  bool norm_topk_prob = true;              // a token's weights add up to 1
  // The loss contains router_aux_loss_coef times the load-balancing loss.
  bool output_router_logits = false;
  double router_aux_loss_coef = 0.001;
  // Layers of this multiple have experts, except these, which count from 0.
  std::int64_t decoder_sparse_step = 1;
  std::vector<std::int64_t> mlp_only_layers = {};
  // ClampedGate's members, where the family's experts have that gate.
  double swiglu_alpha = 1.702;
  double swiglu_limit = 7;
};

// Absent keys have transformers' defaults: those below, or those of the family.
struct LlamaConfig {
  const DecoderFamily* family = &llama_family();
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 32;
  std::int64_t head_dim = 128;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;  // the part of a head that is rotated, its first elements
  RopeScaling rope_scaling;
  double attention_dropout = 0.0;
  double residual_dropout = 0.0;  // of the outputs of attention and feed-forward layers
  double initializer_range = 0.02;
  std::string hidden_act = "silu";
  bool attention_bias = false;  // of the queries', keys' and values' projections
  bool output_bias = false;     // of the attention's output
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::string original = "{}";  // the JSON text it was read from

  // Tokens that a query sees, including itself: transformers' sliding window.
  std::optional<std::int64_t> sliding_window;
  // Each layer of this multiple sees all tokens (0: all layers have the window), unless
  // layers_with_window says it layer by layer.
  std::int64_t sliding_window_pattern = 0;
  std::vector<bool> layers_with_window;
  // Base of the rotary frequencies of layers with the window, without scaling; none: as the others.
  std::optional<double> rope_local_base_freq;
  // Attention's scores are divided by its square root; none: head_dim.
  std::optional<std::int64_t> query_pre_attn_scalar;
  // Each layer of this multiple has no rotary positions (0: all layers have them), unless
  // no_rope_layers says it layer by layer: false is a layer without.
  std::int64_t no_rope_layer_interval = 0;
  std::vector<bool> no_rope_layers;

  ExpertsConfig experts;

  // Writes the spelling that all versions of transformers read: rope_theta and rope_scaling.
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
  // Elements of a head that rotary positions turn.
  [[nodiscard]] std::int64_t rotary_dim() const;
  [[nodiscard]] bool has_rotary_positions(std::int64_t layer) const;
  // False for a layer with the window, if there is one.
  [[nodiscard]] bool sees_all(std::int64_t layer) const;
  // The window of a layer; none: it sees all tokens.
  [[nodiscard]] std::optional<std::int64_t> window_of(std::int64_t layer) const;
  [[nodiscard]] bool has_experts(std::int64_t layer) const;
  [[nodiscard]] std::int64_t layers_with_experts() const;

  static const DecoderFamily& llama_family();
};

// Number of key heads if num_key_value_heads is absent: the number of heads, or the value of the
// family's defaults (null still means the number of heads).
enum class KeyHeads : std::uint8_t { as_heads, own_default };
// Size of a head if head_dim is absent: hidden_size / num_attention_heads, or the family's default.
enum class HeadSize : std::uint8_t { of_width, own_default };
// Biases of the attention's projections: none, those of queries, keys and values, or all four if
// the key `attention_bias` is true.
enum class AttentionBias : std::uint8_t { none, inputs, by_key };
// RMS norms of queries and keys before rotary positions.
enum class QueryKeyNorm : std::uint8_t { none, of_heads, of_projections };
// The norms of a layer: of the inputs of attention and feed-forward layer, of their outputs before
// these are added to the residual stream, or of both.
enum class NormPlace : std::uint8_t { before, after, around };

// Names of a mixture of experts: its key in config.json, its module in a layer, the matrices of an
// expert, and the router.
struct ExpertNames {
  std::string count_key;
  std::string block;
  std::string gate = {}, up = {}, down = {};
  std::string router = "gate";
  // gpt-oss's: the router has a bias, the matrices of all experts lie in one tensor, and their gate
  // is a ClampedGate. The three names are not used.
  bool stacked = false;
};

// The differences between models of Llama's build, besides their numbers.
struct DecoderFamily {
  std::string model_type;
  std::string model_class;
  std::string layer_class;
  LlamaConfig (*defaults)() = [] { return LlamaConfig(); };
  // Adds the rows of keys that most families do not have.
  void (*add_rows)(ConfigTable<LlamaConfig>& table) = [](ConfigTable<LlamaConfig>&) {};
  std::vector<std::string> rope_types = {"default", "linear", "llama3", "yarn"};
  KeyHeads key_heads = KeyHeads::as_heads;
  HeadSize head_size = HeadSize::of_width;
  AttentionBias attention_bias = AttentionBias::none;
  bool has_mlp_bias = false;  // the key `mlp_bias`
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  NormPlace norms = NormPlace::before;
  double norm_offset = 0;          // added to the norms' weights
  bool scales_embeddings = false;  // by the square root of hidden_size
  // The gate's activation and its key: silu, or gelu_pytorch_tanh, the tanh form of GELU.
  std::string activation_key = "hidden_act";
  // One projection qkv_proj, and one gate_up_proj.
  bool fused_projections = false;
  // A further key of each attention head, AttentionOptions::sinks.
  bool has_sinks = false;
  // config.json lists the windows of layers in `layer_types`, and has no key for their pattern.
  bool lists_windows = false;
  std::optional<ExpertNames> experts = {};  // none: a model without
};

// The rows of a family's config.json.
ConfigTable<LlamaConfig> decoder_table(const DecoderFamily& family);
// Reads and checks a config.json. Error(configuration) for a model that is not supported.
LlamaConfig parse_decoder(const DecoderFamily& family, const nlohmann::json& config,
                          const ConfigSource& source);

}  // namespace tessera::models
