// Turns sentences into embeddings, in batches of similar length, tokenised ahead of the encoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"
#include "models/text_encoder.h"

namespace tessera::tasks {

// The steps from a text to the encoder's tokens.
struct TextTokens {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::int64_t max_length = 0;  // special tokens included; 0: no limit
  bool lower_case = false;      // lowercase the text first, in addition to the tokenizer
  std::string prompt = {};      // comes before each text

  [[nodiscard]] std::vector<std::int32_t> sequence(std::string_view text) const;
};

// Sequences padded to the longest of them, on `device`. Error(data) for a sequence without tokens.
models::TokenBatch make_token_batch(const std::vector<std::vector<std::int32_t>>& sequences,
                                    std::int32_t padding_id, Device device);

// An encoder's forward, sharded or not: [batch, dimension] in any floating dtype.
using Encode = std::function<Tensor(const models::TokenBatch&)>;

struct EncodingOptions {
  std::int64_t batch_size = 32;
  Device device = {};        // of the encoder
  std::int64_t batches = 0;  // forwards at least: ranks that share a sharded encoder need as many
};

// Calls take(i, row) with the embedding of texts[i], in the order of the batches: the longest texts
// come first. A row does not depend on its batch if the encoder has this property
// (models/text_encoder.h). Records no graph. A thread of its own tokenises the next batches.
void encode_texts(std::span<const std::string_view> texts, const TextTokens& tokens,
                  const Encode& encode, const EncodingOptions& options,
                  const std::function<void(std::size_t, std::span<const float>)>& take);

// The number of forwards of encode_texts for so many texts.
constexpr std::int64_t batches_of(std::int64_t texts, std::int64_t batch_size) {
  return (texts + batch_size - 1) / batch_size;
}

// The numbers of [0, lengths.size()) by falling length, then by number.
std::vector<std::size_t> longest_first(std::span<const std::size_t> lengths);

}  // namespace tessera::tasks
