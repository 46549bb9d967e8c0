// A model that turns padded token sequences into hidden states: BERT and its kin.
#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "models/model.h"

namespace tessera::models {

// Sequences of tokens, padded at their end to the longest of them. On the parameters' device.
struct TokenBatch {
  Tensor ids;      // int32 [batch, length]; what stands in the padding is a valid id, and not read
  Tensor lengths;  // int32 [batch]: tokens of each sequence that are not padding, at least 1
};

class TextEncoder : public Model {
 public:
  // Hidden states [batch, length, width()] in the parameters' dtype; those of padding are not
  // defined, and no other depends on them. A sequence's states are the same bits whatever it is
  // padded to.
  virtual Tensor forward(const TokenBatch& tokens) = 0;
  [[nodiscard]] virtual std::int64_t width() const = 0;
};

}  // namespace tessera::models
