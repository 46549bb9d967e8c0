// A template's text in tokens, with Jinja's control of white space.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers::jinja {

enum class TokenKind : std::uint8_t {
  data,            // text between tags
  variable_begin,  // {{
  variable_end,    // }}
  block_begin,     // {%
  block_end,       // %}
  name,
  text,      // a literal, without quotes and escapes
  integer,   // its digits
  floating,  // its digits
  symbol,    // an operator or a bracket
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int line = 1;
};

// Throws Error(data) that begins with `source` and the line. The settings are those of
// transformers: trim_blocks (a newline behind a block's tag is dropped) and lstrip_blocks (spaces
// before a block's tag that begins its line are dropped), and a last newline is dropped. `template`
// is valid UTF-8.
std::vector<Token> read_tokens(std::string_view text, const std::string& source);

}  // namespace tessera::tokenizers::jinja
