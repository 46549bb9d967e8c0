// Llama's body and head.
#include "models/llama/llama.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/low_precision.h"

namespace tessera::models {
namespace {

double rounded_to(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  if (dtype == bfloat16) return static_cast<double>(to_float(to_bfloat16(single)));
  if (dtype == float16) return static_cast<double>(to_float(to_float16(single)));
  return dtype == float32 ? static_cast<double>(single) : value;
}

}  // namespace

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config)
    : positions_(config.max_position_embeddings),
      embedding_scale_(config.family->scales_embeddings
                           ? std::sqrt(static_cast<double>(config.hidden_size))
                           : 1),
      rope_(config.rotary_dim(), positions_, config.rope_theta, config.rope_scaling) {
  if (config.rope_local_base_freq) {
    local_rope_.emplace(config.rotary_dim(), positions_, *config.rope_local_base_freq,
                        RopeScaling{});
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      is_local_.push_back(config.window_of(i).has_value());
    }
  }
  embed_tokens_ = register_module(
      "embed_tokens",
      nn::Embedding(config.vocab_size, config.hidden_size, config.initializer_range));
  std::vector<DecoderLayer> layers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers.push_back(make_decoder_layer(config, i));
  }
  layers_ = register_module("layers", nn::ModuleList<DecoderLayer>(std::move(layers)));
  norm_ = register_module("norm", decoder_norm(config.hidden_size, config));
}

Tensor LlamaModelImpl::embed(const Tensor& ids, const Documents& documents) const {
  TESSERA_REQUIRE(ids.dimensions() == 2 && whole_length(ids, documents) <= positions_,
                  "the model takes ids of shape [batch, at most {}], given {}", positions_,
                  ids.shape().to_string());
  return embed_rows(ids);
}

// transformers rounds the factor to the weights' dtype.
Tensor LlamaModelImpl::embed_rows(const Tensor& ids) const {
  Tensor x = embed_tokens_(ids);
  if (embedding_scale_ == 1) return x;
  return x * rounded_to(x.dtype(), embedding_scale_);
}

template <class Tables>
std::vector<RopeTables> LlamaModelImpl::by_layer(const Tables& tables) {
  const RopeTables all = tables(rope_);
  std::vector<RopeTables> ropes(layers_->size(), all);
  if (!local_rope_) return ropes;
  const RopeTables local = tables(*local_rope_);
  for (std::size_t i = 0; i < ropes.size(); ++i) {
    if (is_local_[i]) ropes[i] = local;
  }
  return ropes;
}

std::vector<RopeTables> LlamaModelImpl::ropes_of(const Tensor& ids, const Documents& documents,
                                                 Device device) {
  return by_layer([&](RopeCache& cache) { return cache.for_rows(ids, documents, device); });
}

Tensor LlamaModelImpl::forward(const Tensor& ids, const Documents& documents) {
  Tensor x = embed(ids, documents);
  const std::vector<RopeTables> ropes = ropes_of(ids, documents, x.device());
  std::size_t index = 0;
  for (const DecoderLayer& layer : *layers_) x = layer(x, ropes[index++]);
  return norm_(x);
}

std::pair<Tensor, Tensor> LlamaModelImpl::forward(const Tensor& ids, const Documents& documents,
                                                  const Tensor& routing) {
  Tensor x = embed(ids, documents);
  Tensor added = routing;
  const std::vector<RopeTables> ropes = ropes_of(ids, documents, x.device());
  std::size_t index = 0;
  for (const DecoderLayer& layer : *layers_) {
    std::tie(x, added) = layer(x, ropes[index++], added);
  }
  return {norm_(x), added};
}

Tensor LlamaModelImpl::decode(const DecodingBatch& batch) {
  Tensor x = embed_rows(batch.ids());
  const std::vector<RopeTables> ropes =
      by_layer([&](RopeCache& cache) { return cache.for_length(batch.longest(), x.device()); });
  std::int64_t index = 0;
  for (const DecoderLayer& layer : *layers_) {
    const RopeTables& rope = ropes[static_cast<std::size_t>(index)];
    x = layer.call(
        [&](const DecoderLayerImpl& impl) { return impl.decode(x, rope, index, batch); });
    ++index;
  }
  batch.advance();
  return norm_(batch.last_rows(x));
}

LlamaForCausalLM::LlamaForCausalLM(LlamaConfig config) : config_(std::move(config)) {
  model_ = register_module("model", LlamaModel(config_));
  if (!config_.tie_word_embeddings) {
    lm_head_ = register_module(
        "lm_head",
        nn::Linear(config_.hidden_size, config_.vocab_size,
                   nn::LinearOptions{.bias = false, .deviation = config_.initializer_range}));
  } else {
    reads_parameter(model_->token_table()->stored_weight());
  }
}

Tensor LlamaForCausalLM::packed_logits(const Tensor& ids, const Documents& documents) {
  const Tensor x = model_(ids, documents);
  return lm_head_ ? lm_head_(x) : linear(x, model_->token_table()->weight());
}

Tensor LlamaForCausalLM::loss(const Tensor& ids, const Tensor& targets) {
  return packed_loss(ids, targets, {});
}

Tensor LlamaForCausalLM::packed_loss(const Tensor& ids, const Tensor& targets,
                                     const Documents& documents) {
  const ExpertsConfig& experts = config_.experts;
  if (!experts.output_router_logits)
    return loss_of_head(model_(ids, documents), lm_head_, model_->token_table(), targets);
  const Device device = model_->token_table()->stored_weight().device();
  const auto [x, routing] = model_(ids, documents, no_routing(experts.num_experts, device));
  const Tensor loss = loss_of_head(x, lm_head_, model_->token_table(), targets);
  const Tensor balance = load_balance_loss(routing, ids.elements() * config_.layers_with_experts());
  return loss + cast(balance * experts.router_aux_loss_coef, loss.dtype());
}

Tensor LlamaForCausalLM::row_losses(const Tensor& ids, const Tensor& targets) {
  return row_losses_of_head(model_(ids), lm_head_, model_->token_table(), targets);
}

KeyValueCache LlamaForCausalLM::make_cache(std::int64_t capacity) const {
  const std::int64_t width = config_.num_key_value_heads * config_.head_dim;
  const Tensor& table = model_->token_table()->stored_weight();
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
