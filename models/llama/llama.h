// Llama with Hugging Face's module tree, parameter names and shapes: grouped key heads, rotary
// positions, SwiGLU. Mistral and Qwen2 are the same modules with another DecoderFamily.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/language_model.h"
#include "models/llama/llama_config.h"
#include "models/llama/rope.h"

namespace tessera::models {

class LlamaAttentionImpl : public nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  Tensor forward(const Tensor& x, const RopeTables& rope) const;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const;

 private:
  AttentionOptions options_;
  std::int64_t head_dim_;
  double dropout_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
};
TESSERA_MODULE(LlamaAttention);

class LlamaMLPImpl : public nn::Module {
 public:
  explicit LlamaMLPImpl(const LlamaConfig& config);
  Tensor forward(const Tensor& x) const;
  Tensor decode(const Tensor& x) const;
  // down_proj's product also computes the gated activation.
  [[nodiscard]] bool is_indivisible() const override { return true; }

 private:
  nn::Linear gate_proj_, up_proj_, down_proj_;
};
TESSERA_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public nn::Module {
 public:
  explicit LlamaDecoderLayerImpl(const LlamaConfig& config);
  Tensor forward(const Tensor& x, const RopeTables& rope) const;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const;
  // The class's name in transformers, by family.
  [[nodiscard]] std::string class_name() const override { return class_name_; }

 private:
  std::string class_name_;
  nn::RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  nn::RmsNorm post_attention_layernorm_;
  LlamaMLP mlp_;
};
TESSERA_MODULE(LlamaDecoderLayer);

class LlamaModelImpl : public nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& config);
  Tensor forward(const Tensor& ids);          // the last norm's output
  Tensor decode(const DecodingBatch& batch);  // the same for each sequence's last token
  [[nodiscard]] const Tensor& token_table() const { return embed_tokens_->weight(); }

 private:
  const RopeTables& rope_for(std::int64_t length, Device device);

  std::int64_t positions_;
  std::vector<float> frequencies_;
  RopeTables rope_;  // for the most positions used so far
  nn::Embedding embed_tokens_;
  nn::ModuleList<LlamaDecoderLayer> layers_;
  nn::RmsNorm norm_;
};
TESSERA_MODULE(LlamaModel);

class LlamaForCausalLM : public LanguageModel {
 public:
  explicit LlamaForCausalLM(LlamaConfig config);
  Tensor forward(const Tensor& ids) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  [[nodiscard]] KeyValueCache make_cache(std::int64_t capacity) const override;
  Tensor decode(const DecodingBatch& batch) override;

  [[nodiscard]] nlohmann::json config(DType weights = float32) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return config_.family->layer_class; }
  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.max_position_embeddings; }

 private:
  LlamaConfig config_;
  LlamaModel model_;
  nn::Linear lm_head_;  // empty when tied to the token table
};

}  // namespace tessera::models
