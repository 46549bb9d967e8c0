// A model that reads a text and writes another one: an encoder and a decoder.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "models/text_encoder.h"

namespace tessera::models {

class SequenceToSequence : public Model {
 public:
  // decoder_ids [batch, length], int32 or int64 -> the logits [batch, length, vocabulary] of the
  // tokens after them, in the parameters' dtype.
  virtual Tensor forward(const TokenBatch& source, const Tensor& decoder_ids) = 0;
  // Mean cross-entropy over the labels [batch, length], int32 or int64, that are not -100. The
  // decoder's input is its start token and the labels before the last one. Reads the labels on the
  // host. Shorter texts are padded at their end with -100.
  virtual Tensor loss(const TokenBatch& source, const Tensor& labels) = 0;
  // The most likely token, one after the other, of each text: until the end token, which is the
  // last one, or for max_tokens. The model is in evaluation mode, and its parameters are whole.
  [[nodiscard]] virtual std::vector<std::vector<std::int32_t>> write_greedily(
      const TokenBatch& source, std::int64_t max_tokens) = 0;
};

}  // namespace tessera::models
