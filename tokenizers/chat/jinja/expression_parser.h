// Expressions of a template. Internal to the parser.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "tokenizers/chat/jinja/lexer.h"
#include "tokenizers/chat/jinja/syntax.h"

namespace tessera::tokenizers::jinja {

inline Expression constant_of(Value value, int line) {
  return {.kind = ExpressionKind::constant, .line = line, .value = std::move(value)};
}

// The tokens, and how they become expressions. The precedence is Jinja's.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& source)
      : tokens_(std::move(tokens)), source_(source) {}

 protected:
  template <class... Parts>
  [[noreturn]] void refuse(fmt::format_string<Parts...> format, Parts&&... parts) const {
    fail(ErrorCode::data, "{}, line {}: {}", source_, current().line,
         fmt::format(format, std::forward<Parts>(parts)...));
  }

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] bool sees(TokenKind kind, std::string_view text) const {
    return current().kind == kind && current().text == text;
  }
  [[nodiscard]] bool sees_name(std::string_view text) const { return sees(TokenKind::name, text); }
  [[nodiscard]] bool sees_symbol(std::string_view text) const {
    return sees(TokenKind::symbol, text);
  }
  Token next();
  bool skip_name(std::string_view text);
  bool skip_symbol(std::string_view text);
  void expect_name(std::string_view text);
  void expect_symbol(std::string_view text);
  void expect(TokenKind kind);
  std::string name();
  // The current token in a message.
  [[nodiscard]] std::string seen() const;

  // An expression, with its `a if b else c` unless that is excluded.
  Expression expression(bool with_condition = true);
  // An expression, or a tuple if there are commas. `end`: a name that ends it.
  Expression tuple(bool with_condition, std::string_view end);
  Expression primary();
  // `value`, the filters behind it and, at a block's begin, a filter without its bar.
  Expression filters(Expression value, bool bare_first);
  // A node of these children.
  Expression node(ExpressionKind kind, int line, std::vector<Expression> children,
                  std::string name = {}) const;
  void read_arguments(Expression& call);

  // Names that tell what a macro takes.
  bool saw_varargs_ = false;
  bool saw_kwargs_ = false;

 private:
  // Bounds the recursion of the parser.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      parser_.check_depth(++parser_.nested_);
    }
    ~Nested() { --parser_.nested_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

  Expression condition();
  Expression logical_or();
  Expression logical_and();
  Expression logical_not();
  Expression comparison();
  Expression sum();
  Expression concatenation();
  Expression product();
  Expression power();
  Expression unary(bool with_filters);
  Expression postfix(Expression value);
  Expression filters_and_tests(Expression value);
  Expression subscript(Expression value);
  Expression test(Expression value);
  Expression literal();
  Expression mapping();
  bool tuple_ends(std::string_view end) const;
  void check_depth(int depth) const;

  std::vector<Token> tokens_;
  const std::string& source_;
  std::size_t at_ = 0;
  int nested_ = 0;
};

}  // namespace tessera::tokenizers::jinja
