// A model that turns token sequences into hidden states: BERT and its kin.
#pragma once

#include <cstdint>

#include "engine/ops.h"
#include "models/model.h"

namespace tessera::models {

// Sequences of tokens, padded at their end to the longest of them. On the parameters' device.
struct TokenBatch {
  Tensor ids;      // int32 [batch, length]; what stands in the padding is a valid id, and not read
  Tensor lengths;  // int32 [batch]: tokens of each sequence that are not padding, at least 1
};

// The same without the padding: a row for each token, one sequence after the other.
struct TokenRows {
  Tensor ids;        // int32 [rows]
  Tensor positions;  // int32 [rows]: of each token, in the table of positions
  Sequences sequences;
};

class TextEncoder : public Model {
 public:
  // Hidden states [batch, length, width()] in the parameters' dtype; those of padding are not
  // defined, and no other depends on them. A sequence's states are the same bits whatever it is
  // padded to.
  virtual Tensor forward(const TokenBatch& tokens);
  // Hidden states [rows, width()]: nothing is computed for padding.
  virtual Tensor forward(const TokenRows& tokens) = 0;
  // What the forward above takes. Reads the batch's values on the host.
  [[nodiscard]] virtual TokenRows rows_of(const TokenBatch& tokens) const = 0;
  [[nodiscard]] virtual std::int64_t width() const = 0;
};

// rows_of() with the token t of a sequence at position first_position + t. `capacity` is the
// model's longest sequence.
TokenRows numbered_rows(const TokenBatch& tokens, std::int32_t first_position,
                        std::int64_t capacity);
// The same from padding + 1 on, where `padding` tokens among a sequence's have the position
// `padding` and are not counted.
TokenRows padded_rows(const TokenBatch& tokens, std::int32_t padding, std::int64_t capacity);

}  // namespace tessera::models
