// Shared by the tests of encoding and evaluation: an encoder whose every bit is known, and texts
// for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "tasks/encoding.h"
#include "tasks/sentence_losses.h"

namespace tessera::testing {

// Uses a text's first and last byte, its length, and a layer over them; ignores the padding.
struct ByteEncoder : nn::Module {
  ByteEncoder() {
    table = register_module("table", nn::Embedding(256, 8));
    layer = register_module("layer", nn::Linear(8, 6));
    head = register_module("head", tasks::make_softmax_head(6, 3));
  }
  [[nodiscard]] Tensor forward(const models::TokenBatch& tokens) const {
    const auto ids = tokens.ids.to_vector(), lengths = tokens.lengths.to_vector();
    const auto width = static_cast<std::size_t>(tokens.ids.size(1));
    std::vector<std::int32_t> first, last, length;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto count = static_cast<std::size_t>(lengths[i]);
      first.push_back(static_cast<std::int32_t>(ids[i * width]));
      last.push_back(static_cast<std::int32_t>(ids[i * width + count - 1]));
      length.push_back(static_cast<std::int32_t>(count));
    }
    const Shape shape{static_cast<std::int64_t>(lengths.size())};
    return layer(tanh(table(Tensor::from(first, shape)) + table(Tensor::from(last, shape)) * 0.5 +
                      table(Tensor::from(length, shape)) * 0.25));
  }
  nn::Embedding table;
  nn::Linear layer, head;
};

inline tasks::TextTokens byte_tokens(std::int64_t max_length = 60) {
  return {std::make_shared<ByteTokenizer>(), max_length};
}

// Texts of many lengths, all different.
inline std::vector<std::string> numbered_texts(std::size_t count, int seed) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t mixed = (i + 1) * 2654435761u + static_cast<std::size_t>(seed) * 40503u;
    std::string text = std::to_string(mixed % 9973);
    text.insert(0, 1 + mixed % 37, static_cast<char>('a' + mixed / 64 % 26));
    texts.push_back(text + static_cast<char>('A' + mixed / 7 % 26));
  }
  return texts;
}

}  // namespace tessera::testing
