// Chooses the engine of a pattern.
#include "tokenizers/text/pattern.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/text/printable.h"
#include "tokenizers/text/pattern_engines.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

constexpr std::array<std::string_view, 37> general_categories{
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn", "Cs"};
// No two letters of these fold to one character, as "ss" does.
constexpr std::array<std::string_view, 3> contractions{
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)", "(?i:'[sdmt]|'ll|'ve|'re)"};

// Reads an expression of the shared syntax; each function returns false at anything else.
class SharedSyntax {
 public:
  explicit SharedSyntax(std::string_view text) : text_(text) {}

  bool whole() { return alternatives(0) && at_ == text_.size(); }

 private:
  [[nodiscard]] bool more() const { return at_ < text_.size(); }
  [[nodiscard]] char next() const { return text_[at_]; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool alternatives(int depth) {
    constexpr int deepest = 16;
    if (depth > deepest) return false;
    while (more() && next() != ')') {
      if (!take("|") && !item(depth)) return false;
    }
    return true;
  }

  bool item(int depth) {
    for (const std::string_view words : contractions) {
      if (take(words)) return after_group();
    }
    if (take("(?:")) return alternatives(depth + 1) && take(")") && after_group();
    if (take("(?=") || take("(?!")) {
      return alternatives(depth + 1) && take(")") && !at_quantifier();
    }
    const bool one = next() == '[' ? character_class() : next() == '\\' ? escape() : character();
    return one && quantifier();
  }

  // How an empty round ends a loop differs between engines.
  bool after_group() { return (take("?") || !at_quantifier()) && !at_quantifier(); }

  [[nodiscard]] bool at_quantifier() const {
    return more() && std::string_view("?*+{").find(next()) != std::string_view::npos;
  }

  bool quantifier() {
    if (!at_quantifier()) return true;
    if (!take("?") && !take("*") && !take("+") && !interval()) return false;
    return !at_quantifier();
  }

  std::optional<int> number() {
    int value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    constexpr int most = 1000;
    if (error != std::errc() || value < 0 || value > most) return std::nullopt;
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  bool interval() {
    if (!take("{")) return false;
    const std::optional<int> least = number();
    if (!least) return false;
    if (take(",") && more() && next() != '}') {
      const std::optional<int> most = number();
      if (!most || *most < *least) return false;
    }
    return take("}");
  }

  // A character that stands for itself outside classes.
  bool character() {
    if (std::string_view("\\^$.[]|()?*+{}").find(next()) != std::string_view::npos) return false;
    at_ += character_length(next());
    return true;
  }

  // A character, or the name of several: then it ends no range.
  bool escape(bool* is_set = nullptr) {
    if (!take("\\") || !more()) return false;
    if (take("p{") || take("P{")) {
      const std::size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) return false;
      const std::string_view name = text_.substr(at_, end - at_);
      at_ = end + 1;
      if (is_set != nullptr) *is_set = true;
      return std::ranges::find(general_categories, name) != general_categories.end();
    }
    const char name = text_[at_++];
    if (name == 's' || name == 'S') {
      if (is_set != nullptr) *is_set = true;
      return true;
    }
    constexpr std::string_view characters = "rnt!\"#$%&'()*+,-./:;=?@[\\]^_{|}~";
    return characters.find(name) != std::string_view::npos;
  }

  bool character_class() {
    if (!take("[")) return false;
    take("^");
    bool empty = true;
    while (more() && next() != ']') {
      if (!class_item(empty)) return false;
      empty = false;
    }
    return !empty && take("]");
  }

  bool class_item(bool first) {
    if (next() == '-') {  // itself at either end, and nothing else
      ++at_;
      return first || (more() && next() == ']');
    }
    bool is_set = false;
    if (!class_character(is_set)) return false;
    if (!more() || next() != '-' || text_.substr(at_).starts_with("-]")) return true;
    ++at_;
    const bool from_set = std::exchange(is_set, false);
    return !from_set && more() && next() != '-' && class_character(is_set) && !is_set &&
           (!more() || next() != '-');
  }

  bool class_character(bool& is_set) {
    if (next() == '\\') return escape(&is_set);
    if (next() == '[' || next() == ']' || text_.substr(at_).starts_with("&&")) return false;
    at_ += character_length(next());
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

bool is_shared_syntax(std::string_view expression) {
  return SharedSyntax(expression).whole();
}

std::string shown_pattern(std::string_view expression) {
  constexpr std::size_t longest = 200;
  if (expression.size() <= longest) return fmt::format("'{}'", printable(expression));
  std::size_t end = longest;
  while ((static_cast<unsigned char>(expression[end]) & 0xC0U) == 0x80U) --end;
  return fmt::format("'{}...'", printable(expression.substr(0, end)));
}

Pattern::Pattern(std::string_view expression, const std::string& source)
    : code_(is_shared_syntax(expression) ? compile_with_pcre2(expression, source)
                                         : compile_with_oniguruma(expression, source)) {}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Pattern::Matcher::Matcher(const Pattern& pattern) : search_(pattern.code_->search()) {}
Pattern::Matcher::~Matcher() = default;

bool Pattern::Matcher::find(std::string_view text, std::size_t from, Match& match) {
  return search_->find(text, from, match);
}

}  // namespace tessera::tokenizers
