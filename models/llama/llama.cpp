// Llama's layers.
#include "models/llama/llama.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera::models {
namespace {

nn::LinearOptions linear_options(const LlamaConfig& config, bool bias) {
  return {.bias = bias, .deviation = config.initializer_range};
}

}  // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : head_dim_(config.head_dim), dropout_(config.attention_dropout) {
  options_.heads = config.num_attention_heads;
  options_.key_heads = config.num_key_value_heads;
  options_.causal = true;
  options_.window = config.sliding_window;
  const std::int64_t query_width = config.num_attention_heads * config.head_dim;
  const std::int64_t key_width = config.num_key_value_heads * config.head_dim;
  const nn::LinearOptions options = linear_options(config, config.attention_bias);
  q_proj_ = register_module("q_proj", nn::Linear(config.hidden_size, query_width, options));
  k_proj_ = register_module("k_proj", nn::Linear(config.hidden_size, key_width, options));
  v_proj_ = register_module("v_proj", nn::Linear(config.hidden_size, key_width, options));
  o_proj_ = register_module("o_proj", nn::Linear(query_width, config.hidden_size,
                                                 linear_options(config, config.output_bias)));
}

Tensor LlamaAttentionImpl::forward(const Tensor& x, const RopeTables& rope) const {
  AttentionOptions options = options_;
  options.dropout = is_training() ? dropout_ : 0.0;
  const Tensor q = rotary(q_proj_(x), options.heads, rope.cosine, rope.sine);
  const Tensor k = rotary(k_proj_(x), options.key_heads, rope.cosine, rope.sine);
  return o_proj_(attention(q, k, v_proj_(x), options));
}

Tensor LlamaAttentionImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                  const DecodingBatch& batch) const {
  const Tensor q = decode_layer(q_proj_, x);
  const Tensor k = decode_layer(k_proj_, x);
  const Tensor v = decode_layer(v_proj_, x);
  const Tensor attended = batch.attend_each([&](KeyValueCache& cache, std::int64_t place) {
    const auto turned = [&](const Tensor& rows, std::int64_t heads) {
      return rotary(rows_of(rows, place, batch.tokens()), heads, rope.cosine, rope.sine,
                    cache.length());
    };
    const CachedRows cached =
        cache.append(layer, turned(k, options_.key_heads), rows_of(v, place, batch.tokens()));
    return cached_attention(turned(q, options_.heads), head_dim_, cached, options_);
  });
  return decode_layer(o_proj_, attended);
}

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config) {
  const nn::LinearOptions options = linear_options(config, config.mlp_bias);
  gate_proj_ = register_module("gate_proj",
                               nn::Linear(config.hidden_size, config.intermediate_size, options));
  up_proj_ =
      register_module("up_proj", nn::Linear(config.hidden_size, config.intermediate_size, options));
  down_proj_ = register_module("down_proj",
                               nn::Linear(config.intermediate_size, config.hidden_size, options));
}

Tensor LlamaMLPImpl::forward(const Tensor& x) const {
  // An adapter needs its layer's input, which the fused product does not expose.
  if (down_proj_->has_lora()) return down_proj_(silu(gate_proj_(x)) * up_proj_(x));
  const Tensor y =
      swiglu_linear(gate_proj_(x), up_proj_(x), down_proj_->weight(), down_proj_->layout());
  const Tensor bias = down_proj_->bias();
  return bias ? y + bias : y;
}

Tensor LlamaMLPImpl::decode(const Tensor& x) const {
  return decode_layer(down_proj_, silu(decode_layer(gate_proj_, x)) * decode_layer(up_proj_, x));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config)
    : class_name_(config.family->layer_class) {
  input_layernorm_ =
      register_module("input_layernorm", nn::RmsNorm(config.hidden_size, config.rms_norm_eps));
  self_attn_ = register_module("self_attn", LlamaAttention(config));
  post_attention_layernorm_ = register_module("post_attention_layernorm",
                                              nn::RmsNorm(config.hidden_size, config.rms_norm_eps));
  mlp_ = register_module("mlp", LlamaMLP(config));
}

Tensor LlamaDecoderLayerImpl::forward(const Tensor& x, const RopeTables& rope) const {
  const auto [stream, normalised] =
      post_attention_layernorm_(self_attn_(input_layernorm_(x), rope), x);
  return stream + mlp_(normalised);
}

Tensor LlamaDecoderLayerImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                     const DecodingBatch& batch) const {
  const Tensor attended =
      self_attn_.call([&, input = input_layernorm_(x)](const LlamaAttentionImpl& attention) {
        return attention.decode(input, rope, layer, batch);
      });
  const auto [stream, normalised] = post_attention_layernorm_(attended, x);
  const Tensor& input = normalised;
  return stream + mlp_.call([&](const LlamaMLPImpl& mlp) { return mlp.decode(input); });
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config)
    : positions_(config.max_position_embeddings),
      frequencies_(rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)) {
  embed_tokens_ = register_module(
      "embed_tokens",
      nn::Embedding(config.vocab_size, config.hidden_size, config.initializer_range));
  std::vector<LlamaDecoderLayer> layers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config);
  layers_ = register_module("layers", nn::ModuleList<LlamaDecoderLayer>(std::move(layers)));
  norm_ = register_module("norm", nn::RmsNorm(config.hidden_size, config.rms_norm_eps));
}

Tensor LlamaModelImpl::forward(const Tensor& ids) {
  TESSERA_REQUIRE(ids.dimensions() == 2 && ids.size(1) <= positions_,
                  "the model takes ids of shape [batch, at most {}], given {}", positions_,
                  ids.shape().to_string());
  Tensor x = embed_tokens_(ids);
  const RopeTables& rope = rope_for(ids.size(1), x.device());
  for (const LlamaDecoderLayer& layer : *layers_) x = layer(x, rope);
  return norm_(x);
}

Tensor LlamaModelImpl::decode(const DecodingBatch& batch) {
  Tensor x = embed_tokens_(batch.ids());
  const RopeTables& rope = rope_for(batch.longest(), x.device());
  std::int64_t index = 0;
  for (const LlamaDecoderLayer& layer : *layers_) {
    x = layer.call(
        [&](const LlamaDecoderLayerImpl& impl) { return impl.decode(x, rope, index, batch); });
    ++index;
  }
  batch.advance();
  return norm_(batch.last_rows(x));
}

// Tables grow by doubling, so a context of 131072 positions costs nothing until it is used.
const RopeTables& LlamaModelImpl::rope_for(std::int64_t length, Device device) {
  if (!rope_.cosine || rope_.cosine.size(0) < length || rope_.cosine.device() != device) {
    const auto doubled =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length)));
    rope_ = make_rope_tables(frequencies_, std::min(doubled, positions_), device);
  }
  return rope_;
}

LlamaForCausalLM::LlamaForCausalLM(LlamaConfig config) : config_(std::move(config)) {
  model_ = register_module("model", LlamaModel(config_));
  if (!config_.tie_word_embeddings) {
    lm_head_ = register_module("lm_head", nn::Linear(config_.hidden_size, config_.vocab_size,
                                                     linear_options(config_, false)));
  } else {
    reads_parameter(model_->token_table());
  }
}

Tensor LlamaForCausalLM::forward(const Tensor& ids) {
  const Tensor x = model_(ids);
  return lm_head_ ? lm_head_(x) : linear(x, model_->token_table());
}

Tensor LlamaForCausalLM::loss(const Tensor& ids, const Tensor& targets) {
  return loss_of_head(model_(ids), lm_head_, model_->token_table(), targets);
}

KeyValueCache LlamaForCausalLM::make_cache(std::int64_t capacity) const {
  const std::int64_t width = config_.num_key_value_heads * config_.head_dim;
  const Tensor& table = model_->token_table();
  return {config_.num_hidden_layers,
          capacity,
          {.key = width, .value = width},
          table.dtype(),
          table.device()};
}

Tensor LlamaForCausalLM::decode(const DecodingBatch& batch) {
  const Tensor x = model_.call([&](LlamaModelImpl& model) { return model.decode(batch); });
  return decode_head(x, lm_head_, model_->token_table());
}

HuggingFaceNames LlamaForCausalLM::hugging_face_names() const {
  HuggingFaceNames names;
  // A LlamaModel saved without its head has no prefix.
  names.aliases = [](const std::string& name) {
    constexpr std::string_view prefix = "model.";
    std::vector<std::string> aliases{name};
    if (name.starts_with(prefix)) aliases.push_back(name.substr(prefix.size()));
    return aliases;
  };
  names.ignored = {"rotary_emb.inv_freq", "model.rotary_emb.inv_freq",
                   "layers.#.self_attn.rotary_emb.inv_freq",
                   "model.layers.#.self_attn.rotary_emb.inv_freq"};
  if (config_.tie_word_embeddings) names.ignored.emplace_back("lm_head.weight");
  return names;
}

nlohmann::json LlamaForCausalLM::config(DType weights) const {
  return config_.to_json(weights);
}

}  // namespace tessera::models
