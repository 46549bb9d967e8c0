// GPT-2 with Hugging Face's module tree, parameter names and shapes (linear weights are [in, out],
// as in its Conv1D).
//
// A layer keeps for backward, in units of [tokens, n_embd] (n_inner = 4 n_embd), 10 in all: its
// input 1, the packed projections 3, the attention's output 1, the stream after the attention 1 and
// the feed-forward's pre-activation 4. Both norms' outputs are computed again.
#pragma once

#include <cstdint>
#include <string>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/gpt2/gpt2_config.h"
#include "models/language_model.h"

namespace tessera::models {

class GPT2AttentionImpl : public nn::Module {
 public:
  GPT2AttentionImpl(const Gpt2Config& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const Documents& documents = {}) const;
  Tensor decode(const Tensor& x, std::int64_t layer, const DecodingBatch& batch) const;

 private:
  AttentionOptions options_;
  double dropout_;
  nn::Linear c_attn_, c_proj_;
  nn::Dropout resid_dropout_;
};
TESSERA_MODULE(GPT2Attention);

class GPT2MLPImpl : public nn::Module {
 public:
  explicit GPT2MLPImpl(const Gpt2Config& config);
  Tensor forward(const Tensor& x) const;
  Tensor decode(const Tensor& x) const;
  // c_proj's product also adds c_fc's bias.
  [[nodiscard]] bool is_indivisible() const override { return true; }

 private:
  bool exact_gelu_;
  nn::Linear c_fc_, c_proj_;
  nn::Dropout dropout_;
};
TESSERA_MODULE(GPT2MLP);

class GPT2BlockImpl : public nn::Module {
 public:
  GPT2BlockImpl(const Gpt2Config& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const Documents& documents = {}) const;
  Tensor decode(const Tensor& x, std::int64_t layer, const DecodingBatch& batch) const;

 private:
  nn::LayerNorm ln_1_;
  GPT2Attention attn_;
  nn::LayerNorm ln_2_;
  GPT2MLP mlp_;
};
TESSERA_MODULE(GPT2Block);

class GPT2ModelImpl : public nn::Module {
 public:
  explicit GPT2ModelImpl(const Gpt2Config& config);
  // The last norm's output.
  Tensor forward(const Tensor& ids, const Documents& documents = {}) const;
  Tensor decode(const DecodingBatch& batch) const;  // the same for each sequence's last token
  [[nodiscard]] const nn::Embedding& token_table() const { return wte_; }

 private:
  std::int64_t positions_;
  nn::Embedding wte_, wpe_;
  nn::Dropout drop_;
  nn::ModuleList<GPT2Block> h_;
  nn::LayerNorm ln_f_;
};
TESSERA_MODULE(GPT2Model);

class GPT2LMHeadModel : public LanguageModel {
 public:
  explicit GPT2LMHeadModel(Gpt2Config config);
  Tensor packed_logits(const Tensor& ids, const Documents& documents) override;
  Tensor loss(const Tensor& ids, const Tensor& targets) override;
  Tensor packed_loss(const Tensor& ids, const Tensor& targets, const Documents& documents) override;
  Tensor row_losses(const Tensor& ids, const Tensor& targets) override;
  [[nodiscard]] KeyValueCache make_cache(std::int64_t capacity) const override;
  Tensor decode(const DecodingBatch& batch) override;

  [[nodiscard]] nlohmann::json config(DType weights = float32) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "GPT2Block"; }
  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.n_positions; }

 private:
  Gpt2Config config_;
  GPT2Model transformer_;
  nn::Linear lm_head_;  // empty when tied to the token table
};

}  // namespace tessera::models
