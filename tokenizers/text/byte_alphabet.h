// GPT-2's alphabet, which writes bytes as visible characters: printable Latin-1 as itself, the rest
// from U+0100 on.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

class ByteAlphabet {
 public:
  ByteAlphabet();
  [[nodiscard]] std::string write(std::string_view bytes) const;
  // The bytes that the text spells; none if one of its characters is not in the alphabet.
  [[nodiscard]] std::optional<std::string> read(std::string_view text) const;

 private:
  std::array<std::string, 256> characters_;  // by byte, as UTF-8
  std::array<int, 0x144> bytes_{};           // by code point; -1: none
};

const ByteAlphabet& byte_alphabet();

}  // namespace tessera::tokenizers
