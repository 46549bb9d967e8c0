// Tags, comments and raw parts of a template, and the tokens inside tags.
#include "tokenizers/chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "tokenizers/chat/values/characters.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

constexpr std::array<std::string_view, 26> symbols = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "(",
    ")",  "[",  "]",  "{",  "}",  ",",  ":", ".", "|", "=", "<", ">", ";"};

std::string with_plain_newlines(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      plain += text[i];
    } else {
      plain += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    }
  }
  return plain;
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& source)
      : whole_(with_plain_newlines(text)), source_(source) {
    if (whole_.ends_with('\n')) whole_.pop_back();
    text_ = whole_;
  }

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data_and_tag();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(fmt::format_string<Parts...> format, Parts&&... parts) const {
    fail(ErrorCode::data, "{}, line {}: {}", source_, line_,
         fmt::format(format, std::forward<Parts>(parts)...));
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  [[nodiscard]] bool sees(std::string_view text) const {
    return text_.substr(at_).starts_with(text);
  }
  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                         '\n'));
    at_ += bytes;
  }
  void skip_spaces() { advance(spaces_end(text_, at_) - at_); }

  // The text before a tag at `end`, as the tag's sign leaves it.
  void add_data(std::size_t end, char sign, bool is_variable) {
    std::string_view data = text_.substr(at_, end - at_);
    if (sign == '-') {
      data = stripped_right(data);
    } else if (sign != '+' && !is_variable) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t first = newline == std::string_view::npos ? 0 : newline + 1;
      if ((first > 0 || line_starts_) && spaces_end(data, first) == data.size()) {
        data = data.substr(0, first);
      }
    }
    if (!data.empty()) add(TokenKind::data, std::string(data));
    advance(end - at_);
  }

  // Behind a tag: `-` drops all white space, and a block's or comment's end one newline.
  void finish_tag(char sign, std::size_t mark, bool trims) {
    const std::size_t begin = at_;
    advance(mark + (sign != '\0' ? 1 : 0));
    if (sign == '-') {
      skip_spaces();
    } else if (trims && sign != '+' && sees("\n")) {
      advance(1);
    }
    line_starts_ = at_ > begin && text_[at_ - 1] == '\n';
  }

  // The sign before an end such as %}, or a zero byte; nothing if the end is not here.
  [[nodiscard]] std::optional<char> sign_of_end(std::string_view end, bool plus) const {
    if (sees(end)) return '\0';
    const bool signed_end = at_ < text_.size() && text_.substr(at_ + 1).starts_with(end);
    if (signed_end && (text_[at_] == '-' || (plus && text_[at_] == '+'))) return text_[at_];
    return std::nullopt;
  }

  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return text_.size();
  }

  void read_data_and_tag() {
    const std::size_t tag = find_tag();
    if (tag == text_.size()) {
      add(TokenKind::data, std::string(text_.substr(at_)));
      advance(tag - at_);
      return;
    }
    const char kind = text_[tag + 1];
    const char next = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    add_data(tag, sign, kind == '{');
    if (kind == '%' && read_raw()) return;
    advance(sign == '\0' ? 2 : 3);
    line_starts_ = false;
    if (kind == '#') {
      read_comment();
    } else if (kind == '%') {
      add(TokenKind::block_begin, "{%");
      read_inside("%}", TokenKind::block_end, true);
    } else {
      add(TokenKind::variable_begin, "{{");
      read_inside("}}", TokenKind::variable_end, false);
    }
  }

  void read_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) refuse("a comment has no end");
    const bool is_signed = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
    const char sign = is_signed ? text_[end - 1] : '\0';
    advance(end - at_ - (is_signed ? 1 : 0));
    finish_tag(sign, 2, true);
  }

  // The bytes of {% NAME %} at `from`, without what the signs drop, or 0 if another tag is there.
  std::size_t plain_tag(std::size_t from, std::string_view name, bool plus, char& end_sign) const {
    std::size_t i = from + 2;
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) ++i;
    i = spaces_end(text_, i);
    if (!text_.substr(i).starts_with(name)) return 0;
    i = spaces_end(text_, i + name.size());
    end_sign = '\0';
    if (i < text_.size() && (text_[i] == '-' || (plus && text_[i] == '+'))) end_sign = text_[i++];
    return text_.substr(i).starts_with("%}") ? i + 2 - from : 0;
  }

  // {% raw %} .. {% endraw %}
  bool read_raw() {
    char end_sign = '\0';
    const std::size_t length = plain_tag(at_, "raw", false, end_sign);
    if (length == 0) return false;
    advance(length);
    if (end_sign == '-') skip_spaces();
    line_starts_ = text_[at_ - 1] == '\n';
    for (std::size_t end = text_.find("{%", at_); end != std::string_view::npos;
         end = text_.find("{%", end + 1)) {
      const std::size_t last = plain_tag(end, "endraw", true, end_sign);
      if (last == 0) continue;
      const char next = text_[end + 2];
      add_data(end, next == '-' || next == '+' ? next : '\0', false);
      advance(last - 2 - (end_sign != '\0' ? 1 : 0));
      finish_tag(end_sign, 2, true);
      return true;
    }
    refuse("raw has no endraw");
  }

  void read_inside(std::string_view end, TokenKind end_kind, bool is_block) {
    std::string open;
    for (;;) {
      if (open.empty()) {
        if (const auto sign = sign_of_end(end, is_block)) {
          add(end_kind, std::string(end));
          finish_tag(*sign, end.size(), is_block);
          return;
        }
      }
      if (at_ >= text_.size()) refuse("a tag has no end ({})", end);
      const std::size_t spaces = spaces_end(text_, at_);
      if (spaces > at_) {
        advance(spaces - at_);
      } else {
        read_token(open);
      }
    }
  }

  void read_token(std::string& open) {
    const char c = text_[at_];
    if (c == '\'' || c == '"') return read_text();
    if (c >= '0' && c <= '9') return read_number();
    std::size_t end = at_;
    while (end < text_.size()) {
      std::size_t behind = end;
      if (!is_word(next_character(text_, behind))) break;
      end = behind;
    }
    if (end > at_) {
      add(TokenKind::name, std::string(text_.substr(at_, end - at_)));
      return advance(end - at_);
    }
    for (const std::string_view symbol : symbols) {
      if (!sees(symbol)) continue;
      balance(symbol.front(), open);
      add(TokenKind::symbol, std::string(symbol));
      return advance(symbol.size());
    }
    refuse("unexpected character '{}'", shown(text_.substr(at_, character_length(c))));
  }

  void balance(char symbol, std::string& open) const {
    if (symbol == '(' || symbol == '[' || symbol == '{') {
      open += symbol == '(' ? ')' : symbol == '[' ? ']' : '}';
    } else if (symbol == ')' || symbol == ']' || symbol == '}') {
      if (open.empty() || open.back() != symbol) refuse("unexpected '{}'", symbol);
      open.pop_back();
    }
  }

  std::size_t digits_end(std::size_t from) const {
    while (from < text_.size() && ((text_[from] >= '0' && text_[from] <= '9') ||
                                   (text_[from] == '_' && from > 0 && text_[from - 1] != '_'))) {
      ++from;
    }
    return from;
  }

  void read_number() {
    std::size_t end = digits_end(at_);
    const auto digit_at = [&](std::size_t i) {
      return i < text_.size() && text_[i] >= '0' && text_[i] <= '9';
    };
    bool floating = false;
    const bool behind_dot = at_ > 0 && text_[at_ - 1] == '.';
    if (!behind_dot && end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      floating = true;
      end = digits_end(end + 1);
    }
    if (!behind_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t power = end + 1;
      if (power < text_.size() && (text_[power] == '+' || text_[power] == '-')) ++power;
      if (digit_at(power)) {
        floating = true;
        end = digits_end(power);
      }
    }
    std::string digits(text_.substr(at_, end - at_));
    std::erase(digits, '_');
    if (end < text_.size() && !floating && digits == "0" &&
        std::string_view("xXoObB").find(text_[end]) != std::string_view::npos) {
      refuse("numbers are written with decimal digits");
    }
    add(floating ? TokenKind::floating : TokenKind::integer, std::move(digits));
    advance(end - at_);
  }

  void read_text() {
    const char quote = text_[at_];
    std::string value;
    std::size_t i = at_ + 1;
    while (i < text_.size() && text_[i] != quote) {
      if (text_[i] == '\\') {
        i = read_escape(i + 1, value);
      } else {
        value += text_[i++];
      }
    }
    if (i >= text_.size()) refuse("a text has no end ({})", quote);
    add(TokenKind::text, std::move(value));
    advance(i + 1 - at_);
  }

  // An escape of Python's; an unknown one stays as it is.
  std::size_t read_escape(std::size_t i, std::string& value) const {
    if (i >= text_.size()) refuse("a text has no end");
    constexpr std::string_view names = "\n\\'\"abfnrtv";
    constexpr std::string_view meanings = "\n\\'\"\a\b\f\n\r\t\v";
    const char c = text_[i];
    if (c == '\n') return i + 1;
    if (const std::size_t known = names.find(c); known != std::string_view::npos) {
      value += meanings[known];
      return i + 1;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      return read_code(i + 1, digits, 16, value);
    }
    if (c >= '0' && c <= '7') {
      std::size_t digits = 1;
      while (digits < 3 && i + digits < text_.size() && text_[i + digits] >= '0' &&
             text_[i + digits] <= '7') {
        ++digits;
      }
      return read_code(i, digits, 8, value);
    }
    if (c == 'N') refuse("characters by name (\\N) are not supported");
    value += '\\';
    return i;
  }

  std::size_t read_code(std::size_t i, std::size_t digits, std::uint32_t base,
                        std::string& value) const {
    std::uint32_t code = 0;
    for (std::size_t k = 0; k < digits; ++k) {
      const char c = i + k < text_.size() ? text_[i + k] : '\0';
      const std::size_t digit =
          std::string_view("0123456789abcdef").find(c >= 'A' && c <= 'F' ? c + 32 : c);
      if (digit >= base) refuse("an escape of a text is not complete");
      code = code * base + static_cast<std::uint32_t>(digit);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      refuse("an escape of a text is not a character");
    }
    append_character(value, code);
    return i + digits;
  }

  std::string whole_;
  const std::string& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> read_tokens(std::string_view text, const std::string& source) {
  return Lexer(text, source).run();
}

}  // namespace tessera::tokenizers::jinja
