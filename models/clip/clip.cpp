// CLIP's modules and its loss.
#include "models/clip/clip.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "engine/tensor_ops.h"

namespace tessera::models {
namespace {

EncoderLayerNames clip_layer_names() {
  return {.query = "self_attn.q_proj",
          .key = "self_attn.k_proj",
          .value = "self_attn.v_proj",
          .attention_output = "self_attn.out_proj",
          .attention_norm = "layer_norm1",
          .intermediate = "mlp.fc1",
          .output = "mlp.fc2",
          .output_norm = "layer_norm2"};
}

double inverse_root(std::int64_t size) {
  return 1 / std::sqrt(static_cast<double>(size));
}

PreNormOptions layer_options(const CLIPEncoderConfig& config, bool causal) {
  const double factor = config.initializer_factor;
  const double one = inverse_root(config.hidden_size) * factor;
  const double of_depth = one * inverse_root(2 * config.num_hidden_layers);
  return {.width = config.hidden_size,
          .inner = config.intermediate_size,
          .heads = config.num_attention_heads,
          .eps = config.layer_norm_eps,
          .causal = causal,
          .activation = activation_of(config.hidden_act),
          .attention_dropout = config.attention_dropout,
          .qkv_deviation = of_depth,
          .attention_output_deviation = one,
          .inner_deviation = inverse_root(2 * config.hidden_size) * factor,
          .output_deviation = of_depth};
}

nn::LayerNorm norm_of(const CLIPEncoderConfig& config) {
  return nn::LayerNorm(config.hidden_size, config.layer_norm_eps);
}

// first, first + 1, ... on the device.
Tensor counted_places(std::int64_t first, std::int64_t count, Device device) {
  std::vector<std::int32_t> places;
  for (std::int64_t i = 0; i < count; ++i) places.push_back(static_cast<std::int32_t>(first + i));
  return Tensor::from(places, {count}).to(device);
}

// The place of each text's end, int64 [samples].
Tensor ends_of_texts(const Tensor& ids, std::int64_t eos_token_id) {
  constexpr std::int64_t highest_token = 2;
  if (eos_token_id == highest_token) return argmax(cast(ids, float32), -1);
  const auto number = [&](float value) {
    return Tensor::from(std::vector<float>{value}, {1}).to(ids.device());
  };
  return argmax(where(equal(ids, static_cast<double>(eos_token_id)), number(1), number(0)), -1);
}

}  // namespace

CLIPEncoderLayerImpl::CLIPEncoderLayerImpl(const CLIPEncoderConfig& config, bool causal)
    : PreNormLayerImpl(layer_options(config, causal), clip_layer_names()) {}

CLIPEncoderImpl::CLIPEncoderImpl(const CLIPEncoderConfig& config, bool causal) {
  std::vector<CLIPEncoderLayer> layers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config, causal);
  layers_ = register_module("layers", nn::ModuleList<CLIPEncoderLayer>(std::move(layers)));
}

Tensor CLIPEncoderImpl::forward(const Tensor& x) const {
  Tensor states = x;
  for (const CLIPEncoderLayer& layer : *layers_) states = layer(states);
  return states;
}

CLIPTextEmbeddingsImpl::CLIPTextEmbeddingsImpl(const CLIPTextConfig& config)
    : positions_(config.max_position_embeddings) {
  const double deviation = 0.02 * config.initializer_factor;
  token_embedding_ = register_module(
      "token_embedding", nn::Embedding(config.vocab_size, config.hidden_size, deviation));
  position_embedding_ = register_module("position_embedding",
                                        nn::Embedding(positions_, config.hidden_size, deviation));
}

Tensor CLIPTextEmbeddingsImpl::forward(const Tensor& ids) const {
  TESSERA_REQUIRE(ids.dimensions() == 2 && ids.size(1) <= positions_,
                  "CLIP takes ids of shape [samples, at most {}], given {}", positions_,
                  ids.shape().to_string());
  return token_embedding_(ids) + position_embedding_(counted_places(0, ids.size(1), ids.device()));
}

CLIPTextModelImpl::CLIPTextModelImpl(const CLIPTextConfig& config)
    : eos_token_id_(config.eos_token_id) {
  embeddings_ = register_module("embeddings", CLIPTextEmbeddings(config));
  encoder_ = register_module("encoder", CLIPEncoder(config, true));
  final_layer_norm_ = register_module("final_layer_norm", norm_of(config));
}

std::pair<Tensor, Tensor> CLIPTextModelImpl::forward(const Tensor& ids) const {
  const Tensor states = final_layer_norm_(encoder_(embeddings_(ids)));
  const std::int64_t samples = states.size(0), width = states.size(2);
  const Tensor ends = reshape(ends_of_texts(ids, eos_token_id_), {samples, 1, 1});
  const Tensor pooled = gather(states, 1, expand(ends, {samples, 1, width}));
  return {states, reshape(pooled, {samples, width})};
}

CLIPVisionEmbeddingsImpl::CLIPVisionEmbeddingsImpl(const CLIPVisionConfig& config)
    : rows_(config.patches() + 1) {
  const double factor = config.initializer_factor;
  register_parameter("class_embedding",
                     nn::make_parameter({config.hidden_size},
                                        nn::normal(0, inverse_root(config.hidden_size) * factor)));
  patch_embedding_ =
      register_module("patch_embedding", PatchProjection(PatchProjectionImpl::Options{
                                             .channels = config.num_channels,
                                             .image = config.image_size,
                                             .patch = config.patch_size,
                                             .width = config.hidden_size,
                                             .bias = false,
                                             .deviation = config.initializer_range * factor}));
  position_embedding_ =
      register_module("position_embedding",
                      nn::Embedding(rows_, config.hidden_size, config.initializer_range * factor));
}

Tensor CLIPVisionEmbeddingsImpl::forward(const Tensor& images) const {
  return with_first_and_positions(patch_embedding_(images), parameter("class_embedding"),
                                  position_embedding_(counted_places(0, rows_, images.device())));
}

CLIPVisionModelImpl::CLIPVisionModelImpl(const CLIPVisionConfig& config) {
  embeddings_ = register_module("embeddings", CLIPVisionEmbeddings(config));
  pre_layrnorm_ = register_module("pre_layrnorm", norm_of(config));  // so it is spelt in files
  encoder_ = register_module("encoder", CLIPEncoder(config, false));
  post_layernorm_ = register_module("post_layernorm", norm_of(config));
}

std::pair<Tensor, Tensor> CLIPVisionModelImpl::forward(const Tensor& images) const {
  const Tensor states = encoder_(pre_layrnorm_(embeddings_(images)));
  return {states, post_layernorm_(select(states, 1, 0))};
}

CLIPModel::CLIPModel(CLIPConfig config) : config_(std::move(config)) {
  text_model_ = register_module("text_model", CLIPTextModel(config_.text));
  vision_model_ = register_module("vision_model", CLIPVisionModel(config_.vision));
  const auto projection = [&](std::int64_t width) {
    return nn::Linear(
        width, config_.projection_dim,
        nn::LinearOptions{.bias = false,
                          .deviation = inverse_root(width) * config_.initializer_factor});
  };
  visual_projection_ = register_module("visual_projection", projection(config_.vision.hidden_size));
  text_projection_ = register_module("text_projection", projection(config_.text.hidden_size));
  register_parameter("logit_scale",
                     nn::make_parameter({}, nn::constant(config_.logit_scale_init_value)));
}

Tensor CLIPModel::image_features(const Tensor& images) const {
  return visual_projection_(vision_model_(images).second);
}

Tensor CLIPModel::text_features(const Tensor& ids) const {
  return text_projection_(text_model_(ids).second);
}

Tensor CLIPModel::logit_scale(DType dtype) const {
  return exp(cast(parameter("logit_scale"), dtype));
}

Tensor CLIPModel::forward(const Tensor& images, const Tensor& ids) const {
  const Tensor of_images = normalize_rows(image_features(images));
  const Tensor of_texts = normalize_rows(text_features(ids));
  return matmul(of_images, of_texts, {.b = true}) * logit_scale(of_images.dtype());
}

Tensor CLIPModel::loss(const Tensor& images, const Tensor& ids, const Context& context) const {
  const Tensor of_images = normalize_rows(image_features(images));
  const Tensor of_texts = normalize_rows(text_features(ids));
  return contrastive_loss(of_images, of_texts, logit_scale(of_images.dtype()), context);
}

HuggingFaceNames CLIPModel::hugging_face_names() const {
  HuggingFaceNames names;
  names.aliases = [](const std::string& name) { return std::vector<std::string>{name}; };
  names.ignored = {"text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"};
  return names;
}

Tensor contrastive_loss(const Tensor& images, const Tensor& texts, const Tensor& scale,
                        const Context& context) {
  TESSERA_REQUIRE(images.dimensions() == 2 && images.shape() == texts.shape(),
                  "contrastive_loss takes images and texts [samples, width] of one shape, given {} "
                  "and {}",
                  images.shape().to_string(), texts.shape().to_string());
  const std::int64_t samples = images.size(0);
  const Tensor own = counted_places(context.rank() * samples, samples, images.device());
  const auto to_all = [&](const Tensor& rows, const Tensor& others) {
    return cross_entropy(matmul(rows, context.all_gather(others), {.b = true}) * scale, own);
  };
  return (to_all(images, texts) + to_all(texts, images)) * 0.5;
}

}  // namespace tessera::models
