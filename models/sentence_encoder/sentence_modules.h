// The modules that may follow the pooling of a sentence encoder.
#pragma once

#include <cstdint>

#include "engine/nn/layers.h"
#include "models/sentence_encoder/sentence_encoder.h"

namespace tessera::models {

enum class SentenceActivation : std::uint8_t { identity, tanh, relu, gelu, sigmoid, silu };

struct SentenceDenseOptions {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  SentenceActivation activation = SentenceActivation::tanh;
};

class SentenceDenseImpl : public SentenceModule {
 public:
  explicit SentenceDenseImpl(const SentenceDenseOptions& options);
  Tensor forward(const Tensor& x) const override;

 private:
  SentenceActivation activation_;
  nn::Linear linear_;
};

// Normalises rows to length 1.
class SentenceNormalizeImpl : public SentenceModule {
 public:
  Tensor forward(const Tensor& x) const override;
};

}  // namespace tessera::models
