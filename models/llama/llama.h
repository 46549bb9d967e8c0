// Llama with Hugging Face's module tree, parameter names and shapes: grouped key heads, rotary
// positions, SwiGLU. Mistral, Qwen2, Qwen3, OLMo 2, SmolLM3, Phi-3, Gemma 3, Mixtral, Qwen3-MoE and
// gpt-oss are other families of it (models/llama/decoder_families_config.h).
#pragma once

#include <cstdint>
#include <optional>
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
  // `tables(cache)` gives the rotary tables of a cache; those of all layers are made once.
  template <class Tables>
  [[nodiscard]] std::vector<RopeTables> by_layer(const Tables& tables);
  [[nodiscard]] std::vector<RopeTables> ropes_of(const Tensor& ids, const Documents& documents,
                                                 Device device);
  [[nodiscard]] Tensor embed(const Tensor& ids, const Documents& documents) const;
  [[nodiscard]] Tensor embed_rows(const Tensor& ids) const;

  std::int64_t positions_;
  double embedding_scale_;  // 1: none
  RopeCache rope_;
  std::optional<RopeCache> local_rope_;  // of layers with a window, if they have their own
  std::vector<bool> is_local_;           // by layer; empty if there is no local_rope_
  nn::Embedding embed_tokens_;
  nn::ModuleList<DecoderLayer> layers_;
  nn::RmsNorm norm_;
};
TESSERA_MODULE(LlamaModel);

class LlamaForCausalLM : public LanguageModel {
 public:
  explicit LlamaForCausalLM(LlamaConfig config);
  Tensor packed_logits(const Tensor& ids, const Documents& documents) override;
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
