// A rule gives the table: bytes that are not visible take the next characters from U+0100 on.
#include "tokenizers/text/byte_alphabet.h"

#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    const char32_t character = visible ? static_cast<char32_t>(byte) : next++;
    append_character(characters_[static_cast<std::size_t>(byte)], character);
    bytes_[character] = byte;
  }
}

std::string ByteAlphabet::write(std::string_view bytes) const {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) text += characters_[static_cast<unsigned char>(byte)];
  return text;
}

std::optional<std::string> ByteAlphabet::read(std::string_view text) const {
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    if (character >= bytes_.size() || bytes_[character] < 0) return {};
    bytes += static_cast<char>(bytes_[character]);
  }
  return bytes;
}

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace tessera::tokenizers
