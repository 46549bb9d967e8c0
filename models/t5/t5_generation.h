// T5 with its decoder and head, with Hugging Face's module tree and parameter names.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/sequence_to_sequence.h"
#include "models/t5/t5_decoder.h"

namespace tessera::models {

class T5ForConditionalGeneration : public SequenceToSequence {
 public:
  explicit T5ForConditionalGeneration(T5GenerationConfig config);
  Tensor forward(const TokenBatch& source, const Tensor& decoder_ids) override;
  Tensor loss(const TokenBatch& source, const Tensor& labels) override;
  [[nodiscard]] std::vector<std::vector<std::int32_t>> write_greedily(
      const TokenBatch& source, std::int64_t max_tokens) override;

  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.n_positions; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json(weights);
  }
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "T5Block"; }

 private:
  [[nodiscard]] T5Source encode(const TokenBatch& source);
  // The decoder's states [batch, length, d_model], as the head takes them.
  [[nodiscard]] Tensor states(const TokenBatch& source, const Tensor& decoder_ids);
  [[nodiscard]] Tensor for_head(const Tensor& states) const;
  [[nodiscard]] Tensor head(const Tensor& states) const;
  // int32 [batch, length]: the start token, then the labels before the last, with the padding token
  // for -100.
  [[nodiscard]] Tensor shifted(const Tensor& labels) const;

  T5GenerationConfig config_;
  nn::Embedding shared_;
  T5Stack encoder_;
  T5Decoder decoder_;
  nn::Linear lm_head_;  // empty when tied to the token table
};

}  // namespace tessera::models
