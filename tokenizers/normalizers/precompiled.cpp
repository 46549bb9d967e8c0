// Precompiled: SentencePiece's table of replacements. It is a double-array trie over the texts to
// replace, followed by the replacements, each ended by a NUL.
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "tokenizers/pipeline/normalizer.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

std::string from_base64(const std::string& text, const std::string& source) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const std::size_t value =
        std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
            .find(c);
    TESSERA_CHECK(value != std::string_view::npos, ErrorCode::data,
                  "{}: precompiled_charsmap is not base64", source);
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>((bits >> count) & 0xff);
    }
  }
  return bytes;
}

// Units of the double array, in the 32-bit layout of Darts.
constexpr bool has_leaf(std::uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
constexpr std::uint32_t value_of(std::uint32_t unit) {
  return unit & ((1u << 31) - 1);
}
constexpr std::uint32_t label_of(std::uint32_t unit) {
  return unit & ((1u << 31) | 0xff);
}
constexpr std::uint32_t offset_of(std::uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

class Precompiled final : public Normalizer {
 public:
  Precompiled(const nlohmann::json& object, const std::string& source) {
    const std::string map = from_base64(string_of(object, "precompiled_charsmap", source), source);
    std::uint32_t bytes = 0;
    if (map.size() >= 4) std::memcpy(&bytes, map.data(), 4);
    TESSERA_CHECK(map.size() >= 4 && bytes % 4 == 0 && bytes <= map.size() - 4, ErrorCode::data,
                  "{}: precompiled_charsmap is damaged", source);
    units_.resize(bytes / 4);
    if (bytes > 0) std::memcpy(units_.data(), map.data() + 4, bytes);
    texts_ = map.substr(4 + bytes);
    std::string copy;
    TESSERA_CHECK(as_utf8(texts_, copy).data() == texts_.data(), ErrorCode::data,
                  "{}: precompiled_charsmap is damaged", source);
  }

  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    buffer.clear();
    Writer writer(*this, buffer);
    for (std::size_t at = 0; at < text.size();) {
      // An ASCII character before another ASCII character is a grapheme, except in a line end.
      const std::size_t end = ascii_end(text, at);
      std::size_t plain = end == text.size() || end == at ? end : end - 1;
      for (; at < plain; ++at) {
        if (text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') {
          writer.visit(text.substr(at, 2));
          ++at;
        } else {
          writer.visit(text.substr(at, 1));
        }
      }
      if (at >= text.size()) break;
      // Goes up to the next two ASCII characters, between which a grapheme ends.
      std::size_t stop = at + character_length(text[at]);
      while (stop < text.size() && !(is_ascii(text[stop - 1]) && is_ascii(text[stop]))) {
        stop += character_length(text[stop]);
      }
      for_each_grapheme(text.substr(at, stop - at), writer);
      at = stop;
    }
    return buffer;
  }
  // The package counts the text after a dropped character as if it were that character.
  [[nodiscard]] bool drops_beginning(std::string_view) const override { return false; }

 private:
  static bool is_ascii(char byte) { return static_cast<unsigned char>(byte) < 0x80; }

  struct Writer final : GraphemeVisitor {
    Writer(const Precompiled& table, std::string& out) : table_(table), out_(out) {}
    // A short grapheme is looked up whole; if it is not in the table, its characters one by one.
    void visit(std::string_view grapheme) override {
      if (grapheme.size() < 6) {
        if (const auto found = table_.replacement(grapheme)) {
          out_ += *found;
          return;
        }
      }
      for (std::size_t at = 0; at < grapheme.size();) {
        const std::size_t length = character_length(grapheme[at]);
        const std::string_view part = grapheme.substr(at, length);
        out_ += table_.replacement(part).value_or(part);
        at += length;
      }
    }
    const Precompiled& table_;
    std::string& out_;
  };

  // The replacement of the shortest text in the table that `part` begins with.
  [[nodiscard]] std::optional<std::string_view> replacement(std::string_view part) const {
    if (units_.empty()) return {};
    std::size_t place = offset_of(units_[0]);
    for (const char byte : part) {
      const auto label = static_cast<unsigned char>(byte);
      if (label == 0) return {};
      place ^= label;
      if (place >= units_.size() || label_of(units_[place]) != label) return {};
      const bool leaf = has_leaf(units_[place]);
      place ^= offset_of(units_[place]);
      if (!leaf) continue;
      if (place >= units_.size()) return {};
      const std::size_t begin = value_of(units_[place]);
      if (begin > texts_.size()) return {};
      if (begin < texts_.size() && !starts_character(texts_[begin])) return {};
      const std::size_t end = std::min(texts_.find('\0', begin), texts_.size());
      return std::string_view(texts_).substr(begin, end - begin);
    }
    return {};
  }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(const nlohmann::json& object,
                                             const std::string& source) {
  return std::make_unique<Precompiled>(object, source);
}

}  // namespace tessera::tokenizers
