// Statements: what tags mean.
#include "tokenizers/chat/jinja/parser.h"

#include <algorithm>
#include <array>

#include "tokenizers/chat/jinja/expression_parser.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

constexpr int most_blocks = 100;  // inside each other

class TemplateParser final : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body parse() {
    Body body = statements({});
    if (current().kind != TokenKind::end) refuse("unexpected {}", seen());
    return body;
  }

 private:
  // Statements up to a block that begins with one of these names; its name is then the current
  // token.
  Body statements(const std::vector<std::string_view>& ends) {
    if (++blocks_ > most_blocks) refuse("blocks are nested more than {} deep", most_blocks);
    Body body;
    for (;;) {
      const Token token = current();
      if (token.kind == TokenKind::data) {
        next();
        body.push_back({.kind = StatementKind::text, .line = token.line, .text = token.text});
      } else if (token.kind == TokenKind::variable_begin) {
        next();
        Statement print{.kind = StatementKind::print, .line = token.line};
        print.expressions.push_back(tuple(true, ""));
        expect(TokenKind::variable_end);
        body.push_back(std::move(print));
      } else if (token.kind == TokenKind::block_begin) {
        next();
        if (current().kind != TokenKind::name) {
          refuse("a statement is expected, and {} is there", seen());
        }
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) break;
        body.push_back(statement());
        expect(TokenKind::block_end);
      } else {
        if (!ends.empty()) refuse("{} is missing", ends.back());
        break;
      }
    }
    --blocks_;
    return body;
  }

  // A body behind a tag, up to and with its end's name.
  Body body_until(const std::vector<std::string_view>& ends) {
    skip_symbol(":");
    expect(TokenKind::block_end);
    return statements(ends);
  }
  Body whole_body(std::string_view end) {
    Body body = body_until({end});
    next();
    return body;
  }

  Statement statement() {
    const Token tag = next();
    Statement made{.line = tag.line};
    if (tag.text == "if") {
      read_condition(made);
    } else if (tag.text == "for") {
      read_loop(made);
    } else if (tag.text == "set") {
      read_set(made);
    } else if (tag.text == "macro") {
      read_macro(made);
    } else if (tag.text == "call") {
      read_call(made);
    } else if (tag.text == "filter") {
      made.kind = StatementKind::filtered;
      made.expressions.push_back(filters(captured(tag.line), true));
      made.bodies.push_back(whole_body("endfilter"));
    } else if (tag.text == "with") {
      read_with(made);
    } else if (tag.text == "generation") {
      made.kind = StatementKind::generation;
      read_function_body(made, "endgeneration");
    } else if (tag.text == "break" || tag.text == "continue") {
      if (loops_ == 0) refuse("{} is outside a loop", tag.text);
      made.kind = tag.text == "break" ? StatementKind::leave : StatementKind::next;
    } else {
      refuse_tag(tag.text);
    }
    return made;
  }

  [[noreturn]] void refuse_tag(const std::string& tag) const {
    constexpr std::array<std::string_view, 7> others = {"include", "import", "from",      "extends",
                                                        "block",   "do",     "autoescape"};
    if (std::find(others.begin(), others.end(), tag) != others.end()) {
      refuse("the statement {} is not supported: a chat template is one text by itself", tag);
    }
    refuse("unknown statement '{}'", shown(tag));
  }

  void read_condition(Statement& made) {
    made.kind = StatementKind::condition;
    made.expressions.push_back(tuple(false, ""));
    made.bodies.push_back(body_until({"elif", "else", "endif"}));
    for (;;) {
      const std::string tag = next().text;
      if (tag == "endif") return;
      if (tag == "else") {
        made.bodies.push_back(whole_body("endif"));
        return;
      }
      made.expressions.push_back(tuple(false, ""));
      made.bodies.push_back(body_until({"elif", "else", "endif"}));
    }
  }

  void read_loop(Statement& made) {
    made.kind = StatementKind::loop;
    made.target = target("in", false);
    expect_name("in");
    made.expressions.push_back(tuple(false, "recursive"));
    if (skip_name("if")) made.expressions.push_back(expression());
    made.recursive = skip_name("recursive");
    ++loops_;
    made.bodies.push_back(body_until({"else", "endfor"}));
    --loops_;
    if (next().text == "else") made.bodies.push_back(whole_body("endfor"));
  }

  void read_set(Statement& made) {
    made.target = target("", true);
    if (skip_symbol("=")) {
      made.kind = StatementKind::assign;
      made.expressions.push_back(tuple(true, ""));
      return;
    }
    made.kind = StatementKind::capture;
    made.expressions.push_back(filters(captured(made.line), false));
    made.bodies.push_back(whole_body("endset"));
  }

  void read_parameters(Statement& made) {
    expect_symbol("(");
    while (!sees_symbol(")")) {
      Parameter parameter{.name = variable()};
      if (skip_symbol("=")) {
        parameter.has_fallback = true;
        parameter.fallback = expression();
      } else if (!made.parameters.empty() && made.parameters.back().has_fallback) {
        refuse("parameter {} has no default, and one before it has", shown(parameter.name));
      }
      made.parameters.push_back(std::move(parameter));
      if (!sees_symbol(")")) expect_symbol(",");
    }
    expect_symbol(")");
  }

  void read_function_body(Statement& made, std::string_view end) {
    const int outside = std::exchange(loops_, 0);
    made.bodies.push_back(whole_body(end));
    loops_ = outside;
  }

  void read_macro(Statement& made) {
    made.kind = StatementKind::macro;
    made.text = variable();
    const bool outside[] = {std::exchange(saw_varargs_, false), std::exchange(saw_kwargs_, false)};
    read_parameters(made);
    read_function_body(made, "endmacro");
    made.uses_varargs = std::exchange(saw_varargs_, outside[0]);
    made.uses_kwargs = std::exchange(saw_kwargs_, outside[1]);
  }

  void read_call(Statement& made) {
    made.kind = StatementKind::call;
    if (sees_symbol("(")) read_parameters(made);
    made.expressions.push_back(expression());
    if (made.expressions.front().kind != ExpressionKind::call) refuse("call needs a call");
    read_function_body(made, "endcall");
  }

  void read_with(Statement& made) {
    made.kind = StatementKind::with;
    while (current().kind != TokenKind::block_end) {
      if (!made.parameters.empty()) expect_symbol(",");
      Parameter parameter{.name = variable(), .has_fallback = true};
      expect_symbol("=");
      parameter.fallback = expression();
      made.parameters.push_back(std::move(parameter));
    }
    made.bodies.push_back(whole_body("endwith"));
  }

  // A name that can be set.
  std::string variable() {
    std::string text = name();
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (text == constant) refuse("{} cannot be set", text);
    }
    return text;
  }

  // Names, and for set also an attribute of a namespace.
  Expression target(std::string_view end, bool with_attribute, bool inner = false) {
    const int line = current().line;
    std::vector<Expression> names;
    bool has_comma = false;
    while (names.empty() || skip_symbol(",")) {
      if (!names.empty()) has_comma = true;
      if (!names.empty() &&
          (sees_symbol("=") || sees_symbol(")") || (!end.empty() && sees_name(end))))
        break;
      if (!inner && skip_symbol("(")) {
        names.push_back(target("", with_attribute, true));
        expect_symbol(")");
        continue;
      }
      Expression one{.kind = ExpressionKind::name, .line = current().line, .name = variable()};
      if (with_attribute && skip_symbol(".")) {
        std::vector<Expression> owner;
        owner.push_back(std::move(one));
        one = node(ExpressionKind::attribute, line, std::move(owner), name());
      }
      names.push_back(std::move(one));
    }
    if (!has_comma) return std::move(names.front());
    return node(ExpressionKind::tuple, line, std::move(names));
  }

  // The place of a block's output in its chain of filters.
  static Expression captured(int line) {
    return {.kind = ExpressionKind::constant, .line = line, .value = {}};
  }

  int blocks_ = 0;
  int loops_ = 0;
};

}  // namespace

Body parse_template(std::string_view text, const std::string& source) {
  std::string copy;
  const std::string_view valid = as_utf8(text, copy);
  if (valid.data() != text.data()) fail(ErrorCode::data, "{}: it is not UTF-8", source);
  return TemplateParser(read_tokens(text, source), source).parse();
}

}  // namespace tessera::tokenizers::jinja
