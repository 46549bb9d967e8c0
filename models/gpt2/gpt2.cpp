// GPT-2's layers.
#include "models/gpt2/gpt2.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "models/own_call.h"

namespace tessera::models {
namespace {

nn::Linear conv1d(std::int64_t in, std::int64_t out, double deviation) {
  return nn::Linear(in, out,
                    nn::LinearOptions{.layout = WeightLayout::in_out, .deviation = deviation});
}

// Projections into the residual stream start smaller, so that its variance does not grow with
// depth.
double residual_deviation(const Gpt2Config& config) {
  return config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.n_layer));
}

}  // namespace

GPT2AttentionImpl::GPT2AttentionImpl(const Gpt2Config& config, std::int64_t layer)
    : dropout_(config.attn_pdrop) {
  options_.heads = config.n_head;
  options_.causal = true;
  options_.scale = config.attention_scale(layer);
  c_attn_ =
      register_module("c_attn", conv1d(config.n_embd, 3 * config.n_embd, config.initializer_range));
  c_proj_ =
      register_module("c_proj", conv1d(config.n_embd, config.n_embd, residual_deviation(config)));
  resid_dropout_ = register_module("resid_dropout", nn::Dropout(config.resid_pdrop));
}

Tensor GPT2AttentionImpl::forward(const Tensor& x, const Documents& documents) const {
  AttentionOptions options = options_;
  options.document_starts = documents.starts;
  options.dropout = is_training() ? dropout_ : 0.0;
  const ContextParallel* ranks = documents.ranks.get();
  return resid_dropout_(c_proj_(ranks ? ranks->packed_attention(c_attn_(x), options)
                                      : packed_attention(c_attn_(x), options)));
}

// The cache's rows are whole packed projections: one copy for each token.
Tensor GPT2AttentionImpl::decode(const Tensor& x, std::int64_t layer,
                                 const DecodingBatch& batch) const {
  const Tensor qkv = decode_layer(c_attn_, x);
  const std::int64_t width = x.size(2);
  const Tensor attended = batch.attend_each([&](KeyValueCache& cache, std::int64_t place) {
    const Tensor rows = rows_of(qkv, place, batch.tokens());
    CachedRows cached = cache.append(layer, rows);
    cached.key_offset = width;
    cached.value_offset = 2 * width;
    return cached_attention(rows, width / options_.heads, cached, options_);
  });
  return decode_layer(c_proj_, attended);
}

GPT2MLPImpl::GPT2MLPImpl(const Gpt2Config& config) : exact_gelu_(config.exact_gelu()) {
  c_fc_ = register_module("c_fc", conv1d(config.n_embd, config.n_inner, config.initializer_range));
  c_proj_ =
      register_module("c_proj", conv1d(config.n_inner, config.n_embd, residual_deviation(config)));
  dropout_ = register_module("dropout", nn::Dropout(config.resid_pdrop));
}

Tensor GPT2MLPImpl::forward(const Tensor& x) const {
  if (needs_own_call(c_proj_) || c_fc_->has_forward_hooks()) {
    return dropout_(c_proj_(gelu(c_fc_(x), exact_gelu_)));
  }
  const Tensor before_bias = linear(x, c_fc_->weight(), {}, c_fc_->layout());
  return dropout_(bias_gelu_linear(c_fc_->with_lora(before_bias, x), c_fc_->bias(),
                                   c_proj_->weight(), c_proj_->bias(), c_proj_->layout(),
                                   exact_gelu_));
}

Tensor GPT2MLPImpl::decode(const Tensor& x) const {
  return decode_layer(c_proj_, gelu(decode_layer(c_fc_, x), exact_gelu_));
}

GPT2BlockImpl::GPT2BlockImpl(const Gpt2Config& config, std::int64_t layer) {
  ln_1_ = register_module("ln_1", nn::LayerNorm(config.n_embd, config.layer_norm_epsilon));
  attn_ = register_module("attn", GPT2Attention(config, layer));
  ln_2_ = register_module("ln_2", nn::LayerNorm(config.n_embd, config.layer_norm_epsilon));
  mlp_ = register_module("mlp", GPT2MLP(config));
}

Tensor GPT2BlockImpl::forward(const Tensor& x, const Documents& documents) const {
  const auto [stream, normalised] = ln_2_(attn_(ln_1_(x), documents), x);
  return stream + mlp_(normalised);
}

Tensor GPT2BlockImpl::decode(const Tensor& x, std::int64_t layer,
                             const DecodingBatch& batch) const {
  const Tensor attended =
      attn_.call([&, normalised = ln_1_(x)](const GPT2AttentionImpl& attention) {
        return attention.decode(normalised, layer, batch);
      });
  const auto [stream, normalised] = ln_2_(attended, x);
  const Tensor& input = normalised;
  return stream + mlp_.call([&](const GPT2MLPImpl& mlp) { return mlp.decode(input); });
}

GPT2ModelImpl::GPT2ModelImpl(const Gpt2Config& config) : positions_(config.n_positions) {
  wte_ = register_module("wte",
                         nn::Embedding(config.vocab_size, config.n_embd, config.initializer_range));
  wpe_ = register_module(
      "wpe", nn::Embedding(config.n_positions, config.n_embd, config.initializer_range));
  drop_ = register_module("drop", nn::Dropout(config.embd_pdrop));
  std::vector<GPT2Block> blocks;
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) blocks.emplace_back(config, layer);
  h_ = register_module("h", nn::ModuleList<GPT2Block>(std::move(blocks)));
  ln_f_ = register_module("ln_f", nn::LayerNorm(config.n_embd, config.layer_norm_epsilon));
}

Tensor GPT2ModelImpl::forward(const Tensor& ids, const Documents& documents) const {
  TESSERA_REQUIRE(ids.dimensions() == 2 && whole_length(ids, documents) <= positions_,
                  "GPT-2 takes ids of shape [batch, at most {}], given {}", positions_,
                  ids.shape().to_string());
  Tensor positions = documents.positions;
  if (!positions.defined()) {
    std::vector<std::int32_t> places(static_cast<std::size_t>(ids.size(1)));
    std::iota(places.begin(), places.end(),
              static_cast<std::int32_t>(first_position(ids, documents)));
    positions = Tensor::from(places, {ids.size(1)}).to(wpe_->stored_weight().device());
  }
  Tensor x = drop_(wte_(ids) + wpe_(positions));
  for (const GPT2Block& block : *h_) x = block(x, documents);
  return ln_f_(x);
}

Tensor GPT2ModelImpl::decode(const DecodingBatch& batch) const {
  Tensor x = wte_(batch.ids()) + wpe_(batch.positions(batch.ids().device()));
  std::int64_t index = 0;
  for (const GPT2Block& block : *h_) {
    x = block.call([&](const GPT2BlockImpl& layer) { return layer.decode(x, index, batch); });
    ++index;
  }
  batch.advance();
  return ln_f_(batch.last_rows(x));
}

GPT2LMHeadModel::GPT2LMHeadModel(Gpt2Config config) : config_(std::move(config)) {
  transformer_ = register_module("transformer", GPT2Model(config_));
  if (!config_.tie_word_embeddings) {
    lm_head_ = register_module(
        "lm_head",
        nn::Linear(config_.n_embd, config_.vocab_size,
                   nn::LinearOptions{.bias = false, .deviation = config_.initializer_range}));
  } else {
    reads_parameter(transformer_->token_table()->stored_weight());
  }
}

Tensor GPT2LMHeadModel::packed_logits(const Tensor& ids, const Documents& documents) {
  const Tensor x = transformer_(ids, documents);
  return lm_head_ ? lm_head_(x) : linear(x, transformer_->token_table()->weight());
}

Tensor GPT2LMHeadModel::loss(const Tensor& ids, const Tensor& targets) {
  return packed_loss(ids, targets, {});
}

Tensor GPT2LMHeadModel::packed_loss(const Tensor& ids, const Tensor& targets,
                                    const Documents& documents) {
  return loss_of_head(transformer_(ids, documents), lm_head_, transformer_->token_table(), targets);
}

Tensor GPT2LMHeadModel::row_losses(const Tensor& ids, const Tensor& targets) {
  return row_losses_of_head(transformer_(ids), lm_head_, transformer_->token_table(), targets);
}

KeyValueCache GPT2LMHeadModel::make_cache(std::int64_t capacity) const {
  const Tensor& table = transformer_->token_table()->stored_weight();
  return {config_.n_layer, capacity, {.key = 3 * config_.n_embd}, table.dtype(), table.device()};
}

Tensor GPT2LMHeadModel::decode(const DecodingBatch& batch) {
  const Tensor x =
      transformer_.call([&](const GPT2ModelImpl& model) { return model.decode(batch); });
  return decode_head(x, lm_head_, transformer_->token_table());
}

HuggingFaceNames GPT2LMHeadModel::hugging_face_names() const {
  HuggingFaceNames names;
  // The Hub's gpt2 was saved from the model without its head, so its names have no prefix.
  names.aliases = [](const std::string& name) {
    constexpr std::string_view prefix = "transformer.";
    std::vector<std::string> aliases{name};
    if (name.starts_with(prefix)) aliases.push_back(name.substr(prefix.size()));
    return aliases;
  };
  names.ignored = {"h.#.attn.bias", "h.#.attn.masked_bias", "transformer.h.#.attn.bias",
                   "transformer.h.#.attn.masked_bias"};
  if (config_.tie_word_embeddings) names.ignored.emplace_back("lm_head.weight");
  return names;
}

nlohmann::json GPT2LMHeadModel::config(DType weights) const {
  return config_.to_json(weights);
}

}  // namespace tessera::models
