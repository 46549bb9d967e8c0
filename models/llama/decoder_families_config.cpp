// The models of Llama's build, with transformers' defaults.
#include "models/llama/decoder_families_config.h"

#include "models/config/config_table.h"
#include "models/llama/experts_config.h"
#include "models/llama/window_config.h"

namespace tessera::models {
namespace {

LlamaConfig mistral_defaults() {
  LlamaConfig c;
  c.intermediate_size = 14336;
  c.num_key_value_heads = 8;
  c.max_position_embeddings = 131072;
  c.sliding_window = 4096;
  return c;
}

LlamaConfig qwen_defaults() {
  LlamaConfig c;
  c.vocab_size = 151936;
  c.intermediate_size = 22016;
  c.max_position_embeddings = 32768;
  return c;
}

LlamaConfig olmo2_defaults() {
  LlamaConfig c;
  c.vocab_size = 50304;
  c.rms_norm_eps = 1e-5;
  return c;
}

LlamaConfig smollm3_defaults() {
  LlamaConfig c;
  c.vocab_size = 128256;
  c.hidden_size = 2048;
  c.num_hidden_layers = 36;
  c.num_attention_heads = 16;
  c.num_key_value_heads = 4;
  c.max_position_embeddings = 32768;
  c.rope_theta = 2'000'000;
  c.tie_word_embeddings = true;
  c.no_rope_layer_interval = 4;
  return c;
}

void add_smollm3_rows(ConfigTable<LlamaConfig>& table) {
  table.add("no_rope_layer_interval", &LlamaConfig::no_rope_layer_interval,
            "Each layer of this multiple has no rotary positions. A folder's list "
            "`no_rope_layers` replaces it.",
            at_least(1));
}

LlamaConfig phi3_defaults() {
  LlamaConfig c;
  c.vocab_size = 32064;
  c.hidden_size = 3072;
  c.intermediate_size = 8192;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-5;
  return c;
}

void add_phi3_rows(ConfigTable<LlamaConfig>& table) {
  add_window_row(table);
  table.dropout("resid_pdrop", &LlamaConfig::residual_dropout, "Dropout of the residual branches.");
  table.add("partial_rotary_factor", &LlamaConfig::partial_rotary_factor,
            "The part of a head that rotary positions turn.",
            {.low = 0, .high = 1, .low_excluded = true});
}

LlamaConfig gemma3_defaults() {
  LlamaConfig c;
  c.vocab_size = 262208;
  c.hidden_size = 2304;
  c.intermediate_size = 9216;
  c.num_hidden_layers = 26;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.head_dim = 256;
  c.max_position_embeddings = 131072;
  c.rope_theta = 1'000'000;
  c.rope_local_base_freq = 10'000;
  c.query_pre_attn_scalar = 256;
  c.sliding_window = 4096;
  c.sliding_window_pattern = 6;
  c.hidden_act = "gelu_pytorch_tanh";
  c.tie_word_embeddings = true;
  return c;
}

LlamaConfig mixtral_defaults() {
  LlamaConfig c = mistral_defaults();
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 1'000'000;
  c.sliding_window = std::nullopt;
  c.experts.num_experts = 8;
  return c;
}

void add_mixtral_rows(ConfigTable<LlamaConfig>& table) {
  add_window_row(table);
  add_expert_rows(table, "num_local_experts");
}

LlamaConfig qwen3_moe_defaults() {
  LlamaConfig c = qwen_defaults();
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_hidden_layers = 24;
  c.num_key_value_heads = 4;
  c.experts = {.num_experts = 128,
               .num_experts_per_tok = 8,
               .moe_intermediate_size = 768,
               .norm_topk_prob = false};
  return c;
}

void add_qwen3_moe_rows(ConfigTable<LlamaConfig>& table) {
  add_expert_rows(table, "num_experts");
  add_sparse_layer_rows(table);
}

LlamaConfig gpt_oss_defaults() {
  LlamaConfig c;
  c.vocab_size = 201088;
  c.hidden_size = 2880;
  c.intermediate_size = 2880;
  c.num_hidden_layers = 36;
  c.num_attention_heads = 64;
  c.num_key_value_heads = 8;
  c.head_dim = 64;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 150'000;
  c.rope_scaling = {.rope_type = "yarn",
                    .factor = 32,
                    .original_max_position_embeddings = 4096,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .truncate = false};
  c.attention_bias = true;
  c.sliding_window = 128;
  c.sliding_window_pattern = 2;
  c.experts = {.num_experts = 128, .num_experts_per_tok = 4};
  return c;
}

void add_gpt_oss_rows(ConfigTable<LlamaConfig>& table) {
  add_window_row(table);
  add_expert_rows(table, "num_local_experts");
  add_clamped_gate_rows(table);
}

}  // namespace

const DecoderFamily& LlamaConfig::llama_family() {
  static const DecoderFamily family{.model_type = "llama",
                                    .model_class = "LlamaForCausalLM",
                                    .layer_class = "LlamaDecoderLayer",
                                    .attention_bias = AttentionBias::by_key,
                                    .has_mlp_bias = true};
  return family;
}

const DecoderFamily& mistral_family() {
  static const DecoderFamily family{.model_type = "mistral",
                                    .model_class = "MistralForCausalLM",
                                    .layer_class = "MistralDecoderLayer",
                                    .defaults = mistral_defaults,
                                    .add_rows = add_window_row,
                                    .key_heads = KeyHeads::own_default};
  return family;
}

const DecoderFamily& qwen2_family() {
  static const DecoderFamily family{.model_type = "qwen2",
                                    .model_class = "Qwen2ForCausalLM",
                                    .layer_class = "Qwen2DecoderLayer",
                                    .defaults = qwen_defaults,
                                    .key_heads = KeyHeads::own_default,
                                    .attention_bias = AttentionBias::inputs};
  return family;
}

const DecoderFamily& qwen3_family() {
  static const DecoderFamily family{.model_type = "qwen3",
                                    .model_class = "Qwen3ForCausalLM",
                                    .layer_class = "Qwen3DecoderLayer",
                                    .defaults = qwen_defaults,
                                    .key_heads = KeyHeads::own_default,
                                    .head_size = HeadSize::own_default,
                                    .attention_bias = AttentionBias::by_key,
                                    .query_key_norm = QueryKeyNorm::of_heads};
  return family;
}

const DecoderFamily& olmo2_family() {
  static const DecoderFamily family{.model_type = "olmo2",
                                    .model_class = "Olmo2ForCausalLM",
                                    .layer_class = "Olmo2DecoderLayer",
                                    .defaults = olmo2_defaults,
                                    .attention_bias = AttentionBias::by_key,
                                    .query_key_norm = QueryKeyNorm::of_projections,
                                    .norms = NormPlace::after};
  return family;
}

const DecoderFamily& smollm3_family() {
  static const DecoderFamily family{.model_type = "smollm3",
                                    .model_class = "SmolLM3ForCausalLM",
                                    .layer_class = "SmolLM3DecoderLayer",
                                    .defaults = smollm3_defaults,
                                    .add_rows = add_smollm3_rows,
                                    .key_heads = KeyHeads::own_default,
                                    .attention_bias = AttentionBias::by_key,
                                    .has_mlp_bias = true};
  return family;
}

// longrope takes other frequencies for longer sequences, so a cache of rotated keys would not stay
// right while a sequence grows; it is refused.
const DecoderFamily& phi3_family() {
  static const DecoderFamily family{.model_type = "phi3",
                                    .model_class = "Phi3ForCausalLM",
                                    .layer_class = "Phi3DecoderLayer",
                                    .defaults = phi3_defaults,
                                    .add_rows = add_phi3_rows,
                                    .rope_types = {"default"},
                                    .fused_projections = true};
  return family;
}

const DecoderFamily& gemma3_family() {
  static const DecoderFamily family{.model_type = "gemma3_text",
                                    .model_class = "Gemma3ForCausalLM",
                                    .layer_class = "Gemma3DecoderLayer",
                                    .defaults = gemma3_defaults,
                                    .add_rows = add_local_rows,
                                    .rope_types = {"default", "linear"},
                                    .key_heads = KeyHeads::own_default,
                                    .head_size = HeadSize::own_default,
                                    .attention_bias = AttentionBias::by_key,
                                    .query_key_norm = QueryKeyNorm::of_heads,
                                    .norms = NormPlace::around,
                                    .norm_offset = 1,
                                    .scales_embeddings = true,
                                    .activation_key = "hidden_activation"};
  return family;
}

const DecoderFamily& mixtral_family() {
  static const DecoderFamily family{.model_type = "mixtral",
                                    .model_class = "MixtralForCausalLM",
                                    .layer_class = "MixtralDecoderLayer",
                                    .defaults = mixtral_defaults,
                                    .add_rows = add_mixtral_rows,
                                    .key_heads = KeyHeads::own_default,
                                    .experts = ExpertNames{.count_key = "num_local_experts",
                                                           .block = "block_sparse_moe",
                                                           .gate = "w1",
                                                           .up = "w3",
                                                           .down = "w2"}};
  return family;
}

const DecoderFamily& qwen3_moe_family() {
  static const DecoderFamily family{.model_type = "qwen3_moe",
                                    .model_class = "Qwen3MoeForCausalLM",
                                    .layer_class = "Qwen3MoeDecoderLayer",
                                    .defaults = qwen3_moe_defaults,
                                    .add_rows = add_qwen3_moe_rows,
                                    .key_heads = KeyHeads::own_default,
                                    .attention_bias = AttentionBias::by_key,
                                    .query_key_norm = QueryKeyNorm::of_heads,
                                    .experts = ExpertNames{.count_key = "num_experts",
                                                           .block = "mlp",
                                                           .gate = "gate_proj",
                                                           .up = "up_proj",
                                                           .down = "down_proj"}};
  return family;
}

const DecoderFamily& gpt_oss_family() {
  static const DecoderFamily family{
      .model_type = "gpt_oss",
      .model_class = "GptOssForCausalLM",
      .layer_class = "GptOssDecoderLayer",
      .defaults = gpt_oss_defaults,
      .add_rows = add_gpt_oss_rows,
      .rope_types = {"default", "yarn"},
      .key_heads = KeyHeads::own_default,
      .head_size = HeadSize::own_default,
      .attention_bias = AttentionBias::by_key,
      .has_sinks = true,
      .lists_windows = true,
      .experts = ExpertNames{
          .count_key = "num_local_experts", .block = "mlp", .router = "router", .stacked = true}};
  return family;
}

}  // namespace tessera::models
