// A parsed template.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tokenizers/chat/values/value.h"

namespace tessera::tokenizers::jinja {

enum class ExpressionKind : std::uint8_t {
  constant,     // value
  name,         // name
  list,         // children
  tuple,        // children
  mapping,      // children: key, value, key, ..
  attribute,    // children[0].name
  item,         // children[0][children[1]]
  slice,        // children[0][children[1]:children[2]:children[3]]; absent ones are constants None
  call,         // children[0](the other children, named)
  filter,       // children[0] | name(the other children, named)
  test,         // children[0] is name(the other children, named)
  negative,     // -children[0]
  positive,     // +children[0]
  logical_not,  // not children[0]
  logical_and,  // of two children
  logical_or,   // of two children
  arithmetic,   // children[0] name children[1]
  comparison,   // children[0] operators[0] children[1] operators[1] children[2] ..
  concatenation,  // children[0] ~ children[1] ~ ..
  condition,      // children[1] if children[0] else children[2], which may be absent
};

// Nodes are nested at most most_depth deep, so that recursion over them is bounded.
inline constexpr int most_depth = 200;

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 1;
  int depth = 1;
  std::string name = {};
  Value value = {};
  std::vector<Expression> children = {};
  std::vector<std::pair<std::string, Expression>> named = {};
  std::vector<std::string> operators = {};
};

enum class StatementKind : std::uint8_t {
  text,        // text
  print,       // expressions[0]
  condition,   // expressions[i] has bodies[i]; one more body is else's
  loop,        // for target in expressions[0] (if expressions[1]): bodies[0], else bodies[1]
  assign,      // target = expressions[0]
  capture,     // target = the output of bodies[0] through expressions[0], a chain of filters
  filtered,    // the output of bodies[0] through expressions[0], a chain of filters
  macro,       // text(parameters): bodies[0]
  call,        // expressions[0] with caller(parameters): bodies[0]
  with,        // targets of parameters' names: bodies[0]
  generation,  // bodies[0], whose place in the output is noted
  leave,       // break
  next,        // continue
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  bool has_fallback = false;
  Expression fallback = {};
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 1;
  std::string text = {};
  // A name, an attribute of a name (a namespace's), or a tuple of names.
  Expression target = {};
  std::vector<Expression> expressions = {};
  std::vector<Parameter> parameters = {};
  std::vector<Body> bodies = {};
  bool recursive = false;     // loop
  bool uses_varargs = false;  // macro
  bool uses_kwargs = false;
};

}  // namespace tessera::tokenizers::jinja
