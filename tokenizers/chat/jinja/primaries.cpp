// Names, literals, lists, mappings and tuples.
#include <charconv>
#include <cstdlib>

#include "tokenizers/chat/jinja/expression_parser.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers::jinja {

Expression ExpressionParser::primary() {
  const int line = current().line;
  if (current().kind == TokenKind::name) {
    const std::string text = next().text;
    if (text == "true" || text == "True") return constant_of(true, line);
    if (text == "false" || text == "False") return constant_of(false, line);
    if (text == "none" || text == "None") return constant_of(None{}, line);
    saw_varargs_ = saw_varargs_ || text == "varargs";
    saw_kwargs_ = saw_kwargs_ || text == "kwargs";
    return {.kind = ExpressionKind::name, .line = line, .name = text};
  }
  if (current().kind == TokenKind::symbol) {
    if (skip_symbol("(")) {
      const Nested nested(*this);
      Expression value = sees_symbol(")") ? node(ExpressionKind::tuple, line, {}) : tuple(true, "");
      expect_symbol(")");
      return value;
    }
    if (skip_symbol("[")) {
      std::vector<Expression> items;
      while (!sees_symbol("]")) {
        items.push_back(expression());
        if (!sees_symbol("]")) expect_symbol(",");
      }
      expect_symbol("]");
      return node(ExpressionKind::list, line, std::move(items));
    }
    if (skip_symbol("{")) return mapping();
  }
  return literal();
}

Expression ExpressionParser::mapping() {
  const int line = current().line;
  std::vector<Expression> items;
  while (!sees_symbol("}")) {
    items.push_back(expression());
    expect_symbol(":");
    items.push_back(expression());
    if (!sees_symbol("}")) expect_symbol(",");
  }
  expect_symbol("}");
  return node(ExpressionKind::mapping, line, std::move(items));
}

Expression ExpressionParser::literal() {
  const Token token = current();
  if (token.kind == TokenKind::text) {
    std::string text;
    while (current().kind == TokenKind::text) text += next().text;  // neighbours are joined
    return constant_of(std::move(text), token.line);
  }
  if (token.kind == TokenKind::integer) {
    std::int64_t value = 0;
    const char* const end = token.text.data() + token.text.size();
    const auto [stop, error] = std::from_chars(token.text.data(), end, value);
    if (error != std::errc{} || stop != end)
      refuse("the number {} is too large", shown(token.text));
    next();
    return constant_of(value, token.line);
  }
  if (token.kind == TokenKind::floating) {
    next();
    return constant_of(std::strtod(token.text.c_str(), nullptr), token.line);
  }
  refuse("an expression is expected, and {} is there", seen());
}

bool ExpressionParser::tuple_ends(std::string_view end) const {
  return current().kind == TokenKind::variable_end || current().kind == TokenKind::block_end ||
         sees_symbol(")") || (!end.empty() && sees_name(end));
}

Expression ExpressionParser::tuple(bool with_condition, std::string_view end) {
  const int line = current().line;
  std::vector<Expression> items;
  bool has_comma = false;
  while (items.empty() || skip_symbol(",")) {
    if (!items.empty()) has_comma = true;
    if (tuple_ends(end)) break;
    items.push_back(expression(with_condition));
  }
  if (items.empty()) refuse("an expression is expected, and {} is there", seen());
  if (!has_comma) return std::move(items.front());
  return node(ExpressionKind::tuple, line, std::move(items));
}

}  // namespace tessera::tokenizers::jinja
