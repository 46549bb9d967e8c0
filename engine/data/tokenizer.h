// From text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::int64_t vocabulary_size() const = 0;
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Throws Error(data) for an id outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

// Each byte is a token: 256 ids, any text and any binary file.
class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "bytes"; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 256; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override;
};

// By the recipe's name for it; Error(configuration) for a name that there is not.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name);

}  // namespace tessera
