// ViT with Hugging Face's module tree and parameter names: the patches of an image behind a class
// token, with learned positions, through pre-norm layers.
//
//   const auto config = ts::models::load_vit_config("vit-base");   // models/load/image_models.h
//   ts::models::ViTForImageClassification net(config);
//   const ts::Tensor logits = net.forward(images);
//
// models/vit/pre_norm_layer.h has what a layer keeps for backward.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/model.h"
#include "models/vit/patch_projection.h"
#include "models/vit/pre_norm_layer.h"
#include "models/vit/vit_config.h"

namespace tessera::models {

// Only a level of names: `patch_embeddings.projection`.
class ViTPatchEmbeddingsImpl : public nn::Module {
 public:
  explicit ViTPatchEmbeddingsImpl(const ViTConfig& config);
  Tensor forward(const Tensor& images) const { return projection_(images); }

 private:
  PatchProjection projection_;
};
TESSERA_MODULE(ViTPatchEmbeddings);

class ViTEmbeddingsImpl : public nn::Module {
 public:
  explicit ViTEmbeddingsImpl(const ViTConfig& config);
  Tensor forward(const Tensor& images) const;

 private:
  double dropout_;
  ViTPatchEmbeddings patch_embeddings_;
};
TESSERA_MODULE(ViTEmbeddings);

class ViTLayerImpl : public PreNormLayerImpl {
 public:
  explicit ViTLayerImpl(const ViTConfig& config);
};
TESSERA_MODULE(ViTLayer);

class ViTEncoderImpl : public nn::Module {
 public:
  explicit ViTEncoderImpl(const ViTConfig& config);
  Tensor forward(const Tensor& x) const;

 private:
  nn::ModuleList<ViTLayer> layer_;
};
TESSERA_MODULE(ViTEncoder);

class ViTPoolerImpl : public nn::Module {
 public:
  explicit ViTPoolerImpl(const ViTConfig& config);
  Tensor forward(const Tensor& class_rows) const {
    return activate(dense_(class_rows), activation_);
  }

 private:
  Activation activation_;
  nn::Linear dense_;
};
TESSERA_MODULE(ViTPooler);

// The modules of transformers' ViTModel, alone or below a head.
class ViTBodyImpl : public nn::Module {
 public:
  ViTBodyImpl(const ViTConfig& config, bool add_pooling_layer);
  // [samples, channels, image_size, image_size] -> [samples, 1 + patches, hidden_size], the class
  // token's row first.
  Tensor forward(const Tensor& images) const;
  [[nodiscard]] const ViTPooler& pooler() const { return pooler_; }

 private:
  ViTEmbeddings embeddings_;
  ViTEncoder encoder_;
  nn::LayerNorm layernorm_;
  ViTPooler pooler_;  // or empty
};
TESSERA_MODULE(ViTBody);

class ViTModel : public FolderModel {
 public:
  explicit ViTModel(ViTConfig config, bool add_pooling_layer = true);
  // Hidden states: the class token's row, then a row for each patch, in the parameters' dtype.
  Tensor forward(const Tensor& images) const { return body_->forward(images); }
  // [samples, pooler_output_size] of forward()'s states. A std::logic_error without the pooler.
  [[nodiscard]] Tensor pooled(const Tensor& states) const;

  [[nodiscard]] const ViTConfig& configuration() const { return config_; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json("ViTModel", weights);
  }
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "ViTLayer"; }

 private:
  ViTConfig config_;
  ViTBody body_;
};

class ViTForImageClassification : public FolderModel {
 public:
  explicit ViTForImageClassification(ViTConfig config);
  Tensor forward(const Tensor& images) const;  // logits [samples, labels]
  // transformers' loss for the configuration's problem_type: the cross-entropy of class numbers
  // [samples], of an integer dtype; for labels of a floating dtype the squared error if there is
  // one class, [samples], or the binary cross-entropy of each class, [samples, labels].
  [[nodiscard]] Tensor loss(const Tensor& images, const Tensor& labels) const {
    return loss_of(forward(images), labels);
  }
  [[nodiscard]] Tensor loss_of(const Tensor& logits, const Tensor& labels) const;

  [[nodiscard]] const ViTConfig& configuration() const { return config_; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json("ViTForImageClassification", weights);
  }
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "ViTLayer"; }

 private:
  ViTConfig config_;
  ViTBody vit_;
  nn::Linear classifier_;
};

}  // namespace tessera::models
