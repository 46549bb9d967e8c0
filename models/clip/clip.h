// CLIP with Hugging Face's module tree and parameter names: an encoder of texts and one of images
// with projections to one space, and the contrastive loss over the batch of all ranks.
//
//   ts::models::CLIPModel net(ts::models::load_clip_config("clip-vit-base-patch32"));
//   const ts::Tensor loss = net.loss(images, ids, context);
//
// models/vit/pre_norm_layer.h has what a layer keeps for backward.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/clip/clip_config.h"
#include "models/model.h"
#include "models/vit/patch_projection.h"
#include "models/vit/pre_norm_layer.h"
#include "sharding/context/context.h"

namespace tessera::models {

class CLIPEncoderLayerImpl : public PreNormLayerImpl {
 public:
  CLIPEncoderLayerImpl(const CLIPEncoderConfig& config, bool causal);
};
TESSERA_MODULE(CLIPEncoderLayer);

class CLIPEncoderImpl : public nn::Module {
 public:
  CLIPEncoderImpl(const CLIPEncoderConfig& config, bool causal);
  Tensor forward(const Tensor& x) const;

 private:
  nn::ModuleList<CLIPEncoderLayer> layers_;
};
TESSERA_MODULE(CLIPEncoder);

class CLIPTextEmbeddingsImpl : public nn::Module {
 public:
  explicit CLIPTextEmbeddingsImpl(const CLIPTextConfig& config);
  Tensor forward(const Tensor& ids) const;

 private:
  std::int64_t positions_;
  nn::Embedding token_embedding_, position_embedding_;
};
TESSERA_MODULE(CLIPTextEmbeddings);

class CLIPTextModelImpl : public nn::Module {
 public:
  explicit CLIPTextModelImpl(const CLIPTextConfig& config);
  // ids [samples, length], int32 or int64 -> the hidden states [samples, length, hidden_size], and
  // of each text the state of its first token eos_token_id, [samples, hidden_size]. A text without
  // that token has the state of its first token, as in transformers. With the eos_token_id 2, which
  // early configurations have whatever their tokenizer's is, it is the state of the first token of
  // the highest number. No token sees those behind it, so padding at the end needs no mask.
  std::pair<Tensor, Tensor> forward(const Tensor& ids) const;

 private:
  std::int64_t eos_token_id_;
  CLIPTextEmbeddings embeddings_;
  CLIPEncoder encoder_;
  nn::LayerNorm final_layer_norm_;
};
TESSERA_MODULE(CLIPTextModel);

class CLIPVisionEmbeddingsImpl : public nn::Module {
 public:
  explicit CLIPVisionEmbeddingsImpl(const CLIPVisionConfig& config);
  Tensor forward(const Tensor& images) const;

 private:
  std::int64_t rows_;
  PatchProjection patch_embedding_;
  nn::Embedding position_embedding_;
};
TESSERA_MODULE(CLIPVisionEmbeddings);

class CLIPVisionModelImpl : public nn::Module {
 public:
  explicit CLIPVisionModelImpl(const CLIPVisionConfig& config);
  // [samples, channels, image_size, image_size] -> the hidden states [samples, 1 + patches,
  // hidden_size], and the class token's behind the last norm, [samples, hidden_size].
  std::pair<Tensor, Tensor> forward(const Tensor& images) const;

 private:
  CLIPVisionEmbeddings embeddings_;
  nn::LayerNorm pre_layrnorm_, post_layernorm_;
  CLIPEncoder encoder_;
};
TESSERA_MODULE(CLIPVisionModel);

class CLIPModel : public FolderModel {
 public:
  explicit CLIPModel(CLIPConfig config);

  // [samples, projection_dim] in the parameters' dtype, of any length: transformers'
  // get_image_features and get_text_features.
  [[nodiscard]] Tensor image_features(const Tensor& images) const;
  [[nodiscard]] Tensor text_features(const Tensor& ids) const;
  // Similarities [images, texts], transformers' logits_per_image, in fp32 (fp64 for fp64).
  Tensor forward(const Tensor& images, const Tensor& ids) const;
  // contrastive_loss() of images and their texts: row i of both belong together.
  [[nodiscard]] Tensor loss(const Tensor& images, const Tensor& ids, const Context& context) const;

  [[nodiscard]] const CLIPConfig& configuration() const { return config_; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json(weights);
  }
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  // Both encoders have it.
  [[nodiscard]] std::string layer_class() const override { return "CLIPEncoderLayer"; }

 private:
  // The factor of similarities, in the dtype of the embeddings. Reads a parameter of the root: call
  // it behind a child's forward.
  [[nodiscard]] Tensor logit_scale(DType dtype) const;

  CLIPConfig config_;
  CLIPTextModel text_model_;
  CLIPVisionModel vision_model_;
  nn::Linear visual_projection_, text_projection_;
};

// The mean of two cross-entropies over the batch of all ranks: of each image to all texts, and of
// each text to all images, where similarities are products of rows of length 1 times `scale`. Each
// rank has the same number of rows of both. A rank's result is that of its own rows; the mean over
// the ranks, as Context::mean() and the gradients are, is the loss of one rank with all rows. The
// embeddings are gathered with their gradients. Collective.
Tensor contrastive_loss(const Tensor& images, const Tensor& texts, const Tensor& scale,
                        const Context& context);

}  // namespace tessera::models
