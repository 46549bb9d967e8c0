// A model that turns token sequences into hidden states: BERT and similar models.
#pragma once

#include <cstdint>

#include "engine/ops.h"
#include "models/model.h"

namespace tessera::models {

// Sequences of tokens, padded at their end to the longest of them. On the parameters' device.
struct TokenBatch {
  Tensor ids;      // int32 [batch, length]; padding has a valid id, which is not read
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
  // Hidden states [batch, length, width()] in the parameters' dtype. Those of padding are
  // undefined, and no other state depends on them. A sequence's states are the same bits for any
  // padding.
  virtual Tensor forward(const TokenBatch& tokens);
  // Hidden states [rows, width()], without computation for padding.
  virtual Tensor forward(const TokenRows& tokens) = 0;
  // The input of the forward above. Reads the batch's values on the host.
  [[nodiscard]] virtual TokenRows rows_of(const TokenBatch& tokens) const = 0;
  [[nodiscard]] virtual std::int64_t width() const = 0;
};

// The states [rows, width] of the tokens' rows as [batch, length, width]; padding repeats its
// sequence's first state. Reads the lengths on the host.
Tensor padded_states(const Tensor& states, const TokenBatch& tokens);
// The rows [batch * length, ..] of sequences of equal length.
Sequences equal_sequences(std::int64_t batch, std::int64_t length, std::int64_t capacity,
                          Device device);

// rows_of() with the token t of a sequence at position first_position + t. `capacity` is the
// model's longest sequence.
TokenRows numbered_rows(const TokenBatch& tokens, std::int32_t first_position,
                        std::int64_t capacity);
// The rows of a padded batch, numbered from 0, and what leads from them back to it, with one
// reading of ids and lengths on the host: the row of each place, int32 [batch, length], where
// padding has its sequence's first row, and 0 for padding in uint8 [batch, length] for
// AttentionOptions::key_mask.
struct PaddedRows {
  TokenRows tokens;
  Tensor row_of_place, mask;
};
PaddedRows rows_and_places(const TokenBatch& tokens, std::int64_t capacity);
// numbered_rows() from padding + 1 on. Tokens `padding` within a sequence have the position
// `padding` and are not counted.
TokenRows padded_rows(const TokenBatch& tokens, std::int32_t padding, std::int64_t capacity);

}  // namespace tessera::models
