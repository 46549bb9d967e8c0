// Llama with Hugging Face's module tree, parameter names and shapes: grouped key heads, rotary
// positions, SwiGLU. Mistral, Qwen2, Qwen3, OLMo 2, SmolLM3, Phi-3, Mixtral and Qwen3-MoE are other
// families of it (models/llama/decoder_families_config.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/language_model.h"
#include "models/llama/decoder_layer.h"
#include "models/llama/llama_config.h"
#include "models/llama/rope.h"

namespace tessera::models {

class LlamaModelImpl : public nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& config);
  // The last norm's output.
  Tensor forward(const Tensor& ids, const Documents& documents = {});
  // The same, and `routing` with the mixtures of experts of all layers added (no_routing()).
  std::pair<Tensor, Tensor> forward(const Tensor& ids, const Documents& documents,
                                    const Tensor& routing);
  Tensor decode(const DecodingBatch& batch);  // the same for each sequence's last token
  [[nodiscard]] const nn::Embedding& token_table() const { return embed_tokens_; }

 private:
  Tensor embed(const Tensor& ids) const;
  const RopeTables& rope_for(std::int64_t length, Device device);
  // The tables for the batch's tokens.
  RopeTables rope_of(const Tensor& ids, const Documents& documents, Device device);

  std::int64_t positions_;
  std::vector<float> frequencies_;
  double attention_factor_;  // of the rotary tables
  RopeTables rope_;          // for the most positions used so far
  nn::Embedding embed_tokens_;
  nn::ModuleList<DecoderLayer> layers_;
  nn::RmsNorm norm_;
};
TESSERA_MODULE(LlamaModel);

class LlamaForCausalLM : public LanguageModel {
 public:
  explicit LlamaForCausalLM(LlamaConfig config);
  Tensor forward(const Tensor& ids) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  Tensor packed_loss(const Tensor& ids, const Tensor& targets, const Documents& documents) override;
  Tensor row_losses(const Tensor& ids, const Tensor& targets) override;
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
