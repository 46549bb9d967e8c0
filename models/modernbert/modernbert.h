// ModernBERT as an encoder, with Hugging Face's module tree and parameter names: rotary positions,
// norms before attention and feed-forward, a gated feed-forward, and layers that see only a window
// of tokens around each. The heads of other tasks are ignored when weights are read.
//
// A layer keeps for backward, in units of [tokens, hidden_size] with intermediate_size = 1.5
// hidden_size, 13.5 in all: its input 1, the norm's output 1, queries, keys and values 3, the
// attention's output 1, the sum 1, the norm's output 1, both parts of the feed-forward 3, the
// activation 1.5 and the gated product 1.5.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/llama/rope.h"
#include "models/modernbert/modernbert_config.h"
#include "models/text_encoder.h"

namespace tessera::models {

class ModernBertEmbeddingsImpl : public nn::Module {
 public:
  explicit ModernBertEmbeddingsImpl(const ModernBertConfig& config);
  Tensor forward(const TokenRows& tokens) const;

 private:
  double dropout_;
  nn::Embedding tokens_;
  nn::LayerNorm norm_;
};
TESSERA_MODULE(ModernBertEmbeddings);

class ModernBertAttentionImpl : public nn::Module {
 public:
  ModernBertAttentionImpl(const ModernBertConfig& config, bool has_window);
  // `rope` has a row for each row of x.
  Tensor forward(const Tensor& x, const Sequences& sequences, const RopeTables& rope) const;

 private:
  SequenceAttentionOptions options_;
  double dropout_;
  nn::Linear qkv_, out_;
};
TESSERA_MODULE(ModernBertAttention);

class ModernBertMlpImpl : public nn::Module {
 public:
  explicit ModernBertMlpImpl(const ModernBertConfig& config);
  Tensor forward(const Tensor& x, const Sequences& sequences) const;

 private:
  bool exact_gelu_;
  double dropout_;
  nn::Linear in_, out_;
};
TESSERA_MODULE(ModernBertMlp);

class ModernBertLayerImpl : public nn::Module {
 public:
  ModernBertLayerImpl(const ModernBertConfig& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const Sequences& sequences, const RopeTables& rope) const;
  // The class's name in transformers.
  [[nodiscard]] std::string class_name() const override { return "ModernBertEncoderLayer"; }
  [[nodiscard]] bool has_window() const { return has_window_; }

 private:
  bool has_window_;
  nn::LayerNorm attention_norm_;  // empty in the first layer
  nn::LayerNorm mlp_norm_;
  ModernBertAttention attention_;
  ModernBertMlp mlp_;
};
TESSERA_MODULE(ModernBertLayer);

class ModernBertModel : public TextEncoder {
 public:
  explicit ModernBertModel(ModernBertConfig config);
  using TextEncoder::forward;
  Tensor forward(const TokenRows& tokens) override;
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.max_position_embeddings; }
  [[nodiscard]] std::int64_t width() const override { return config_.hidden_size; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json(weights);
  }
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "ModernBertEncoderLayer"; }

 private:
  ModernBertConfig config_;
  RopeCache rope_, window_rope_;
  ModernBertEmbeddings embeddings_;
  nn::ModuleList<ModernBertLayer> layers_;
  nn::LayerNorm final_norm_;
};

}  // namespace tessera::models
