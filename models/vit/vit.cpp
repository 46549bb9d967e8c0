// ViT's modules, and its names in files.
#include "models/vit/vit.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/tensor_ops.h"

namespace tessera::models {
namespace {

EncoderLayerNames vit_layer_names() {
  return {.query = "attention.attention.query",
          .key = "attention.attention.key",
          .value = "attention.attention.value",
          .attention_output = "attention.output.dense",
          .attention_norm = "layernorm_before",
          .intermediate = "intermediate.dense",
          .output = "output.dense",
          .output_norm = "layernorm_after"};
}

PreNormOptions layer_options(const ViTConfig& config) {
  const double deviation = config.initializer_range;
  return {.width = config.hidden_size,
          .inner = config.intermediate_size,
          .heads = config.num_attention_heads,
          .eps = config.layer_norm_eps,
          .qkv_bias = config.qkv_bias,
          .activation = activation_of(config.hidden_act),
          .dropout = config.hidden_dropout_prob,
          .attention_dropout = config.attention_probs_dropout_prob,
          .qkv_deviation = deviation,
          .attention_output_deviation = deviation,
          .inner_deviation = deviation,
          .output_deviation = deviation};
}

nn::Linear linear_layer(const ViTConfig& config, std::int64_t outputs) {
  return nn::Linear(config.hidden_size, outputs,
                    nn::LinearOptions{.deviation = config.initializer_range});
}

// The name that transformers 5 gives the parameter in memory, which it may also write.
std::string newer_name(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> changes[] = {
      {"encoder.layer.", "layers."},
      {"attention.attention.query", "attention.q_proj"},
      {"attention.attention.key", "attention.k_proj"},
      {"attention.attention.value", "attention.v_proj"},
      {"attention.output.dense", "attention.o_proj"},
      {"intermediate.dense", "mlp.fc1"},
      {"output.dense", "mlp.fc2"}};
  for (const auto& [from, to] : changes) {
    const std::size_t at = name.find(from);
    if (at != name.npos) name.replace(at, from.size(), to);
  }
  return name;
}

constexpr std::string_view body_prefix = "vit.";

// A file may be of the body alone or of a model with a head, whichever is read.
HuggingFaceNames names_in_files(const std::vector<std::string>& unused_of_body,
                                const std::vector<std::string>& unused) {
  HuggingFaceNames names;
  names.aliases = [](const std::string& name) {
    std::vector<std::string> aliases{name};
    if (name.starts_with(body_prefix)) {
      aliases.push_back(name.substr(body_prefix.size()));
    } else {
      aliases.push_back(std::string(body_prefix) + name);
    }
    for (std::size_t i = 0, n = aliases.size(); i < n; ++i) {
      const std::string newer = newer_name(aliases[i]);
      if (newer != aliases[i]) aliases.push_back(newer);
    }
    return aliases;
  };
  names.ignored = unused;
  for (const std::string& name : unused_of_body) {
    names.ignored.push_back(name);
    names.ignored.push_back(std::string(body_prefix) + name);
  }
  return names;
}

// The head of masked images.
const std::vector<std::string> decoder_names = {"decoder.0.weight", "decoder.0.bias"};

}  // namespace

ViTPatchEmbeddingsImpl::ViTPatchEmbeddingsImpl(const ViTConfig& config) {
  projection_ = register_module("projection", PatchProjection(PatchProjectionImpl::Options{
                                                  .channels = config.num_channels,
                                                  .image = config.image_size,
                                                  .patch = config.patch_size,
                                                  .width = config.hidden_size,
                                                  .deviation = config.initializer_range}));
}

ViTEmbeddingsImpl::ViTEmbeddingsImpl(const ViTConfig& config)
    : dropout_(config.hidden_dropout_prob) {
  const auto drawn = nn::normal(0, config.initializer_range);
  register_parameter("cls_token", nn::make_parameter({1, 1, config.hidden_size}, drawn));
  register_parameter("position_embeddings",
                     nn::make_parameter({1, config.patches() + 1, config.hidden_size}, drawn));
  patch_embeddings_ = register_module("patch_embeddings", ViTPatchEmbeddings(config));
}

Tensor ViTEmbeddingsImpl::forward(const Tensor& images) const {
  const Tensor rows = with_first_and_positions(patch_embeddings_(images), parameter("cls_token"),
                                               parameter("position_embeddings"));
  return dropout(rows, is_training() ? dropout_ : 0);
}

ViTLayerImpl::ViTLayerImpl(const ViTConfig& config)
    : PreNormLayerImpl(layer_options(config), vit_layer_names()) {}

ViTEncoderImpl::ViTEncoderImpl(const ViTConfig& config) {
  std::vector<ViTLayer> layers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config);
  layer_ = register_module("layer", nn::ModuleList<ViTLayer>(std::move(layers)));
}

Tensor ViTEncoderImpl::forward(const Tensor& x) const {
  Tensor states = x;
  for (const ViTLayer& layer : *layer_) states = layer(states);
  return states;
}

ViTPoolerImpl::ViTPoolerImpl(const ViTConfig& config)
    : activation_(activation_of(config.pooler_act)) {
  dense_ = register_module("dense", linear_layer(config, config.pooler_output_size));
}

ViTBodyImpl::ViTBodyImpl(const ViTConfig& config, bool add_pooling_layer) {
  embeddings_ = register_module("embeddings", ViTEmbeddings(config));
  encoder_ = register_module("encoder", ViTEncoder(config));
  layernorm_ =
      register_module("layernorm", nn::LayerNorm(config.hidden_size, config.layer_norm_eps));
  if (add_pooling_layer) pooler_ = register_module("pooler", ViTPooler(config));
}

Tensor ViTBodyImpl::forward(const Tensor& images) const {
  return layernorm_(encoder_(embeddings_(images)));
}

ViTModel::ViTModel(ViTConfig config, bool add_pooling_layer)
    : config_(std::move(config)), body_(config_, add_pooling_layer) {
  register_children_of(*body_);
}

Tensor ViTModel::pooled(const Tensor& states) const {
  TESSERA_REQUIRE(static_cast<bool>(body_->pooler()), "this ViTModel was made without a pooler");
  return body_->pooler()(select(states, 1, 0));
}

HuggingFaceNames ViTModel::hugging_face_names() const {
  std::vector<std::string> unused = decoder_names;
  unused.insert(unused.end(), {"classifier.weight", "classifier.bias"});
  std::vector<std::string> unused_of_body{"embeddings.mask_token"};
  if (!body_->pooler()) {
    unused_of_body.insert(unused_of_body.end(), {"pooler.dense.weight", "pooler.dense.bias"});
  }
  return names_in_files(unused_of_body, unused);
}

ViTForImageClassification::ViTForImageClassification(ViTConfig config)
    : config_(std::move(config)) {
  vit_ = register_module("vit", ViTBody(config_, false));
  classifier_ = register_module(
      "classifier", linear_layer(config_, static_cast<std::int64_t>(config_.labels.size())));
}

Tensor ViTForImageClassification::forward(const Tensor& images) const {
  return classifier_(select(vit_(images), 1, 0));
}

Tensor ViTForImageClassification::loss_of(const Tensor& logits, const Tensor& labels) const {
  const bool numbers = !is_floating(labels.dtype());
  const bool one_class = config_.labels.size() == 1;
  std::string kind = config_.problem_type;
  if (kind.empty()) {
    kind = one_class ? "regression"
           : numbers ? "single_label_classification"
                     : "multi_label_classification";
  }
  TESSERA_REQUIRE(numbers == (kind == "single_label_classification"),
                  "labels of {} are {}; class numbers are integers, other labels are not", kind,
                  name_of(labels.dtype()));
  if (numbers) return cross_entropy(logits, labels);
  const Tensor values = cast(logits, labels.dtype());
  if (kind == "multi_label_classification") return bce_with_logits(values, labels);
  return mse_loss(one_class ? reshape(values, labels.shape()) : values, labels);
}

HuggingFaceNames ViTForImageClassification::hugging_face_names() const {
  return names_in_files({"embeddings.mask_token", "pooler.dense.weight", "pooler.dense.bias"},
                        decoder_names);
}

}  // namespace tessera::models
