// Statements, the output, and the bounds of a rendering.
#include "tokenizers/chat/jinja/interpreter.h"

#include <algorithm>
#include <stdexcept>

#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/jinja/loop.h"
#include "tokenizers/chat/values/printing.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers::jinja {
namespace {

// A macro, or the body of a call block.
class Macro final : public Object {
 public:
  Macro(const Statement& definition, Scope& closure, std::string name)
      : definition_(definition), closure_(closure), name_(std::move(name)) {}
  [[nodiscard]] std::string_view type() const override { return "macro"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  [[nodiscard]] Value attribute(Interpreter& interpreter, const std::string& name) override {
    return name == "name" ? Value(name_) : Object::attribute(interpreter, name);
  }
  [[nodiscard]] Value call(Interpreter& interpreter, Arguments arguments) override {
    return interpreter.call_body(definition_, closure_, name_, std::move(arguments));
  }

 private:
  const Statement& definition_;
  Scope& closure_;
  std::string name_;
};

}  // namespace

class Interpreter::Level {
 public:
  explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > interpreter_.limits_.depth) {
      interpreter_.refuse("the template calls itself too deep");
    }
  }
  ~Level() { --interpreter_.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& interpreter_;
};

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  const auto place =
      std::find_if(names.begin(), names.end(), [&](const auto& one) { return one.first == name; });
  if (place != names.end()) {
    place->second = std::move(value);
  } else {
    names.emplace_back(name, std::move(value));
  }
}

std::string Interpreter::run(const Body& body, Variables variables) {
  Scope& root = scope_in(nullptr);
  root.names = std::move(variables);
  outputs_.emplace_back();
  execute(body, root);
  return std::move(outputs_.front());
}

void Interpreter::charge(std::int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) refuse("the template takes more than {} steps", limits_.steps);
}

void Interpreter::charge_bytes(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(limits_.longest)) {
    refuse("a text is longer than {} bytes", limits_.longest);
  }
  bytes_ += static_cast<std::int64_t>(bytes);
  if (bytes_ > limits_.bytes)
    refuse("the template makes more than {} bytes of text", limits_.bytes);
}

Scope& Interpreter::scope_in(Scope* parent) {
  charge(object_steps);
  scopes_.push_back(std::make_unique<Scope>());
  scopes_.back()->parent = parent;
  return *scopes_.back();
}

void Interpreter::charge_growth(std::size_t length, std::size_t added) {
  const bool too_long = length + added > static_cast<std::size_t>(limits_.longest);
  charge_bytes(too_long ? length + added : added);
}

void Interpreter::write(const std::string& text) {
  charge_growth(outputs_.back().size(), text.size());
  outputs_.back() += text;
}

void Interpreter::execute(const Body& body, Scope& scope) {
  (void)flow(body, scope);  // the parser lets no break and continue out of a loop
}

std::string Interpreter::captured(const Body& body, Scope& scope) {
  outputs_.emplace_back();
  execute(body, scope);
  std::string output = std::move(outputs_.back());
  outputs_.pop_back();
  return output;
}

Interpreter::Flow Interpreter::flow(const Body& body, Scope& scope) {
  for (const Statement& statement : body) {
    const Flow how = flow(statement, scope);
    if (how != Flow::normal) return how;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::flow(const Statement& statement, Scope& scope) {
  const Level level(*this);
  charge(1);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::text:
      write(statement.text);
      break;
    case StatementKind::print:
      write(text_of(evaluate(statement.expressions.front(), scope)));
      break;
    case StatementKind::condition:
      return condition(statement, scope);
    case StatementKind::loop:
      loop(statement, scope);
      break;
    case StatementKind::assign:
      assign(statement.target, evaluate(statement.expressions.front(), scope), scope);
      break;
    case StatementKind::capture: {
      const Value output = captured(statement.bodies.front(), scope_in(&scope));
      assign(statement.target, filtered(statement.expressions.front(), output, scope), scope);
      break;
    }
    case StatementKind::filtered: {
      const Value output = captured(statement.bodies.front(), scope_in(&scope));
      write(text_of(filtered(statement.expressions.front(), output, scope)));
      break;
    }
    case StatementKind::macro:
      scope.set(statement.text, make<Macro>(statement, scope, statement.text));
      break;
    case StatementKind::call:
      call_block(statement, scope);
      break;
    case StatementKind::with: {
      Scope& inner = scope_in(&scope);
      for (const Parameter& one : statement.parameters) {
        inner.set(one.name, evaluate(one.fallback, scope));
      }
      return flow(statement.bodies.front(), inner);
    }
    case StatementKind::generation:
      generation(statement, scope);
      break;
    case StatementKind::leave:
      return Flow::leave;
    case StatementKind::next:
      return Flow::next;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::condition(const Statement& statement, Scope& scope) {
  for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
    if (evaluate(statement.expressions[i], scope).truth()) return flow(statement.bodies[i], scope);
  }
  const bool has_else = statement.bodies.size() > statement.expressions.size();
  return has_else ? flow(statement.bodies.back(), scope) : Flow::normal;
}

void Interpreter::loop(const Statement& statement, Scope& scope) {
  std::vector<Value> items = items_of(evaluate(statement.expressions.front(), scope));
  run_loop(statement, std::move(items), scope, 1);
}

void Interpreter::run_loop(const Statement& statement, std::vector<Value> items, Scope& around,
                           int depth) {
  if (statement.expressions.size() > 1) {
    std::vector<Value> kept;
    for (Value& item : items) {
      Scope& scope = scope_in(&around);
      assign(statement.target, item, scope);
      if (evaluate(statement.expressions[1], scope).truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    if (statement.bodies.size() > 1) execute(statement.bodies[1], scope_in(&around));
    return;
  }
  const Value handle = make<Loop>(statement, std::move(items), around, depth);
  auto& state = static_cast<Loop&>(*handle.object());
  for (; state.index < state.items_here.size(); ++state.index) {
    charge(1);
    Scope& scope = scope_in(&around);
    scope.set("loop", handle);
    assign(statement.target, state.items_here[state.index], scope);
    if (flow(statement.bodies.front(), scope) == Flow::leave) break;
  }
}

std::string Interpreter::loop_output(const Statement& loop, std::vector<Value> items, Scope& around,
                                     int depth) {
  const Level level(*this);
  outputs_.emplace_back();
  run_loop(loop, std::move(items), around, depth);
  std::string output = std::move(outputs_.back());
  outputs_.pop_back();
  return output;
}

void Interpreter::call_block(const Statement& statement, Scope& scope) {
  const Value caller = make<Macro>(statement, scope, "caller");
  write(text_of(call_value(statement.expressions.front(), scope, &caller)));
}

void Interpreter::generation(const Statement& statement, Scope& scope) {
  if (notes_generations && outputs_.size() > 1) {
    refuse("generation is inside a macro or a set block, so its place in the output is unknown");
  }
  const std::size_t begin = outputs_.back().size();
  execute(statement.bodies.front(), scope_in(&scope));
  if (notes_generations) generations_.push_back({begin, outputs_.back().size()});
}

void Interpreter::assign(const Expression& target, Value value, Scope& scope) {
  if (target.kind == ExpressionKind::name) {
    scope.set(target.name, std::move(value));
    return;
  }
  if (target.kind == ExpressionKind::attribute) {
    const std::string& owner = target.children.front().name;
    const Value* const known = scope.find(owner);
    const bool is_set =
        known != nullptr && known->is<Object*>() && known->object()->set(target.name, value);
    if (!is_set) refuse("cannot set {} of {}, which is not a namespace", target.name, owner);
    return;
  }
  const std::vector<Value> items = items_of(value);
  if (items.size() != target.children.size()) {
    refuse("{} values for {} names", items.size(), target.children.size());
  }
  for (std::size_t i = 0; i < items.size(); ++i) assign(target.children[i], items[i], scope);
}

std::string Interpreter::call_body(const Statement& function, Scope& closure,
                                   const std::string& name, Arguments arguments) {
  const Level level(*this);
  Scope& scope = scope_in(&closure);
  const std::size_t places = function.parameters.size();
  std::vector<Value> more(arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                             places, arguments.positional.size())),
                          arguments.positional.end());
  if (!more.empty() && !function.uses_varargs) {
    refuse("{} takes {} arguments, and {} are given", shown(name), places,
           arguments.positional.size());
  }
  std::vector<std::pair<Value, Value>> others;
  for (auto& [key, value] : arguments.named) {
    const auto place =
        std::find_if(function.parameters.begin(), function.parameters.end(),
                     [&, &wanted = key](const Parameter& one) { return one.name == wanted; });
    if (place != function.parameters.end() || key == "caller") {
      const auto index = static_cast<std::size_t>(place - function.parameters.begin());
      if (index < std::min(places, arguments.positional.size())) {
        refuse("{} gets {} twice", shown(name), shown(key));
      }
      scope.set(key, value);
    } else if (function.uses_kwargs) {
      others.emplace_back(key, value);
    } else {
      refuse("{} has no parameter {}", shown(name), shown(key));
    }
  }
  if (function.uses_varargs) scope.set("varargs", sequence(std::move(more), SequenceKind::tuple));
  if (function.uses_kwargs) scope.set("kwargs", mapping(std::move(others)));
  for (std::size_t i = 0; i < places; ++i) {
    const Parameter& one = function.parameters[i];
    const bool is_named = std::any_of(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& given) { return given.first == one.name; });
    if (i < arguments.positional.size()) {
      scope.set(one.name, arguments.positional[i]);
    } else if (!is_named) {
      scope.set(one.name, one.has_fallback ? evaluate(one.fallback, scope)
                                           : Value::missing(fmt::format(
                                                 "parameter '{}' was not provided", one.name)));
    }
  }
  return captured(function.bodies.front(), scope);
}

Value Interpreter::sequence(std::vector<Value> items, SequenceKind kind) {
  charge(static_cast<std::int64_t>(items.size()));
  try {
    return make_sequence(std::move(items), kind);
  } catch (const std::length_error& problem) {
    refuse("{}", problem.what());
  }
}

Value Interpreter::mapping(std::vector<std::pair<Value, Value>> items) {
  // Keys are looked for one after another.
  charge(static_cast<std::int64_t>(items.size() * (items.size() / 16 + 1)));
  for (const auto& [key, value] : items) {
    const bool hashable =
        !key.is_mapping() && !(key.is_sequence() && key.sequence().kind != SequenceKind::tuple);
    if (!hashable) refuse("a {} cannot be a key", key.type());
  }
  try {
    return make_mapping(std::move(items));
  } catch (const std::length_error& problem) {
    refuse("{}", problem.what());
  }
}

Value Interpreter::generator(std::vector<Value> items) {
  charge(static_cast<std::int64_t>(items.size()));
  return make<Generator>(std::move(items));
}

std::string Interpreter::text_of(const Value& value) {
  try {
    std::string text = print(value);
    charge_bytes(text.size());
    return text;
  } catch (const std::invalid_argument& problem) {
    refuse("{}; it cannot be printed", problem.what());
  }
}

}  // namespace tessera::tokenizers::jinja
