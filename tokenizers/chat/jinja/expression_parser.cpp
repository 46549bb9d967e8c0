// Recursive descent, one function for each level of precedence.
#include "tokenizers/chat/jinja/expression_parser.h"

#include <algorithm>

#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers::jinja {

void ExpressionParser::check_depth(int depth) const {
  if (depth > most_depth) refuse("expressions are nested more than {} deep", most_depth);
}

Token ExpressionParser::next() {
  Token token = tokens_[at_];
  if (token.kind != TokenKind::end) ++at_;
  return token;
}

bool ExpressionParser::skip_name(std::string_view text) {
  if (!sees_name(text)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_symbol(std::string_view text) {
  if (!sees_symbol(text)) return false;
  next();
  return true;
}

std::string ExpressionParser::seen() const {
  if (current().kind == TokenKind::end) return "the end of the template";
  if (current().kind == TokenKind::block_end || current().kind == TokenKind::variable_end) {
    return "the end of the tag";
  }
  return fmt::format("'{}'", shown(current().text));
}

void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) refuse("'{}' is expected, and {} is there", text, seen());
}

void ExpressionParser::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) refuse("'{}' is expected, and {} is there", text, seen());
}

void ExpressionParser::expect(TokenKind kind) {
  if (current().kind != kind) refuse("unexpected {}", seen());
  next();
}

std::string ExpressionParser::name() {
  if (current().kind != TokenKind::name) refuse("a name is expected, and {} is there", seen());
  return next().text;
}

Expression ExpressionParser::node(ExpressionKind kind, int line, std::vector<Expression> children,
                                  std::string name) const {
  Expression made{.kind = kind, .line = line, .name = std::move(name)};
  for (const Expression& child : children) made.depth = std::max(made.depth, child.depth + 1);
  check_depth(made.depth);
  made.children = std::move(children);
  return made;
}

namespace {

std::vector<Expression> pair_of(Expression a, Expression b) {
  std::vector<Expression> both;
  both.push_back(std::move(a));
  both.push_back(std::move(b));
  return both;
}

std::vector<Expression> only(Expression a) {
  std::vector<Expression> one;
  one.push_back(std::move(a));
  return one;
}

}  // namespace

Expression ExpressionParser::expression(bool with_condition) {
  const Nested nested(*this);
  return with_condition ? condition() : logical_or();
}

Expression ExpressionParser::condition() {
  Expression value = logical_or();
  while (sees_name("if")) {
    const int line = next().line;
    std::vector<Expression> parts = pair_of(logical_or(), std::move(value));
    if (skip_name("else")) {
      const Nested nested(*this);
      parts.push_back(condition());
    }
    value = node(ExpressionKind::condition, line, std::move(parts));
  }
  return value;
}

Expression ExpressionParser::logical_or() {
  Expression left = logical_and();
  while (sees_name("or")) {
    const int line = next().line;
    left = node(ExpressionKind::logical_or, line, pair_of(std::move(left), logical_and()));
  }
  return left;
}

Expression ExpressionParser::logical_and() {
  Expression left = logical_not();
  while (sees_name("and")) {
    const int line = next().line;
    left = node(ExpressionKind::logical_and, line, pair_of(std::move(left), logical_not()));
  }
  return left;
}

Expression ExpressionParser::logical_not() {
  if (!sees_name("not")) return comparison();
  const Nested nested(*this);
  const int line = next().line;
  return node(ExpressionKind::logical_not, line, only(logical_not()));
}

Expression ExpressionParser::comparison() {
  const int line = current().line;
  std::vector<Expression> operands = only(sum());
  std::vector<std::string> operators;
  for (;;) {
    const bool ordered = current().kind == TokenKind::symbol &&
                         (sees_symbol("==") || sees_symbol("!=") || sees_symbol("<") ||
                          sees_symbol("<=") || sees_symbol(">") || sees_symbol(">="));
    if (ordered) {
      operators.push_back(next().text);
    } else if (sees_name("in")) {
      next();
      operators.emplace_back("in");
    } else if (sees_name("not") && tokens_[at_ + 1].kind == TokenKind::name &&
               tokens_[at_ + 1].text == "in") {
      next();
      next();
      operators.emplace_back("not in");
    } else {
      break;
    }
    operands.push_back(sum());
  }
  if (operators.empty()) return std::move(operands.front());
  Expression made = node(ExpressionKind::comparison, line, std::move(operands));
  made.operators = std::move(operators);
  return made;
}

Expression ExpressionParser::sum() {
  Expression left = concatenation();
  while (sees_symbol("+") || sees_symbol("-")) {
    const Token sign = next();
    left = node(ExpressionKind::arithmetic, sign.line, pair_of(std::move(left), concatenation()),
                sign.text);
  }
  return left;
}

Expression ExpressionParser::concatenation() {
  const int line = current().line;
  std::vector<Expression> parts = only(product());
  while (skip_symbol("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts.front());
  return node(ExpressionKind::concatenation, line, std::move(parts));
}

Expression ExpressionParser::product() {
  Expression left = power();
  while (sees_symbol("*") || sees_symbol("/") || sees_symbol("//") || sees_symbol("%")) {
    const Token sign = next();
    left =
        node(ExpressionKind::arithmetic, sign.line, pair_of(std::move(left), power()), sign.text);
  }
  return left;
}

Expression ExpressionParser::power() {
  Expression left = unary(true);
  while (sees_symbol("**")) {
    const int line = next().line;
    left = node(ExpressionKind::arithmetic, line, pair_of(std::move(left), unary(true)), "**");
  }
  return left;
}

Expression ExpressionParser::unary(bool with_filters) {
  const Nested nested(*this);
  Expression value;
  if (sees_symbol("-") || sees_symbol("+")) {
    const Token sign = next();
    value = node(sign.text == "-" ? ExpressionKind::negative : ExpressionKind::positive, sign.line,
                 only(unary(false)));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : value;
}

Expression ExpressionParser::postfix(Expression value) {
  for (;;) {
    if (sees_symbol(".") || sees_symbol("[")) {
      value = subscript(std::move(value));
    } else if (sees_symbol("(")) {
      Expression call = node(ExpressionKind::call, current().line, only(std::move(value)));
      read_arguments(call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

Expression ExpressionParser::subscript(Expression value) {
  const Token opening = next();
  if (opening.text == ".") {
    if (current().kind == TokenKind::name) {
      return node(ExpressionKind::attribute, opening.line, only(std::move(value)), next().text);
    }
    if (current().kind != TokenKind::integer) refuse("a name is expected, and {} is there", seen());
    return node(ExpressionKind::item, opening.line, pair_of(std::move(value), literal()));
  }
  // An index, a slice, or a tuple of indices.
  std::vector<Expression> bounds;
  bool is_slice = false;
  const auto bound = [&] {
    const bool absent = sees_symbol(":") || sees_symbol("]");
    bounds.push_back(absent ? constant_of(None{}, opening.line) : expression());
  };
  if (sees_symbol("]")) refuse("an index is expected, and {} is there", seen());
  bound();
  while (bounds.size() < 3 && skip_symbol(":")) {
    is_slice = true;
    bound();
  }
  if (sees_symbol(",")) refuse("an index of several values is not supported");
  expect_symbol("]");
  if (!is_slice) {
    return node(ExpressionKind::item, opening.line,
                pair_of(std::move(value), std::move(bounds.front())));
  }
  while (bounds.size() < 3) bounds.push_back(constant_of(None{}, opening.line));
  bounds.insert(bounds.begin(), std::move(value));
  return node(ExpressionKind::slice, opening.line, std::move(bounds));
}

void ExpressionParser::read_arguments(Expression& call) {
  expect_symbol("(");
  while (!sees_symbol(")")) {
    if (sees_symbol("*") || sees_symbol("**"))
      refuse("arguments with {} are not supported", seen());
    const bool is_named = current().kind == TokenKind::name &&
                          tokens_[at_ + 1].kind == TokenKind::symbol &&
                          tokens_[at_ + 1].text == "=";
    std::string key = is_named ? next().text : std::string();
    if (is_named) next();
    Expression value = expression();
    call.depth = std::max(call.depth, value.depth + 1);
    check_depth(call.depth);
    if (is_named) {
      call.named.emplace_back(std::move(key), std::move(value));
    } else {
      if (!call.named.empty()) refuse("an argument without a name comes behind one with a name");
      call.children.push_back(std::move(value));
    }
    if (!sees_symbol(")")) expect_symbol(",");
  }
  expect_symbol(")");
}

Expression ExpressionParser::filters(Expression value, bool bare_first) {
  while (bare_first || skip_symbol("|")) {
    bare_first = false;
    const int line = current().line;
    std::string called = name();
    while (skip_symbol(".")) called.append(".").append(name());
    Expression filter = node(ExpressionKind::filter, line, only(std::move(value)), called);
    if (sees_symbol("(")) read_arguments(filter);
    value = std::move(filter);
  }
  return value;
}

Expression ExpressionParser::filters_and_tests(Expression value) {
  for (;;) {
    if (sees_symbol("|")) {
      value = filters(std::move(value), false);
    } else if (sees_name("is")) {
      value = test(std::move(value));
    } else if (sees_symbol("(")) {
      Expression call = node(ExpressionKind::call, current().line, only(std::move(value)));
      read_arguments(call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

Expression ExpressionParser::test(Expression value) {
  const int line = next().line;
  const bool negated = skip_name("not");
  std::string called = name();
  while (skip_symbol(".")) called.append(".").append(name());
  Expression made = node(ExpressionKind::test, line, only(std::move(value)), called);
  const bool has_operand = current().kind == TokenKind::name || current().kind == TokenKind::text ||
                           current().kind == TokenKind::integer ||
                           current().kind == TokenKind::floating || sees_symbol("[") ||
                           sees_symbol("{");
  if (sees_symbol("(")) {
    read_arguments(made);
  } else if (has_operand && !sees_name("else") && !sees_name("or") && !sees_name("and")) {
    if (sees_name("is")) refuse("tests are not chained with is");
    Expression operand = postfix(primary());
    made.depth = std::max(made.depth, operand.depth + 1);
    check_depth(made.depth);
    made.children.push_back(std::move(operand));
  }
  if (!negated) return made;
  return node(ExpressionKind::logical_not, line, only(std::move(made)));
}

}  // namespace tessera::tokenizers::jinja
