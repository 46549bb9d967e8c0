// Expressions: names, attributes, calls and the choice between values.
#include <algorithm>

#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/jinja/interpreter.h"
#include "tokenizers/chat/values/characters.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

// A method that is called later.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value owner, Function method) : owner_(std::move(owner)), method_(method) {}
  [[nodiscard]] std::string_view type() const override { return "method"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  [[nodiscard]] Value call(Interpreter& interpreter, Arguments arguments) override {
    return method_(interpreter, owner_, std::move(arguments));
  }

 private:
  Value owner_;
  Function method_;
};

Value missing_attribute(const Value& owner, const std::string& name) {
  if (is_changing_method(owner, name)) {
    return Value::missing(
        fmt::format("'{}' of a {} changes it, which a template must not", name, owner.type()));
  }
  return Value::missing(
      fmt::format("'{} object' has no attribute '{}'", owner.type(), shown(name)));
}

// Python's place of an index that may count from the end, or nothing.
std::optional<std::size_t> place_of(std::int64_t index, std::int64_t length) {
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return static_cast<std::size_t>(index);
}

struct SliceBounds {
  std::int64_t begin, end, step;
};

// Python's slice.indices().
SliceBounds bounds_of(const Value* parts[3], std::int64_t length, Interpreter& interpreter) {
  for (int i = 0; i < 3; ++i) {
    if (!parts[i]->is_integer() && !parts[i]->is_none()) {
      interpreter.refuse("a bound of a slice is a {}", parts[i]->type());
    }
  }
  const std::int64_t step = parts[2]->is_none() ? 1 : parts[2]->integer();
  if (step == 0) interpreter.refuse("a slice of step 0");
  const std::int64_t least = step < 0 ? -1 : 0;
  const std::int64_t most = step < 0 ? length - 1 : length;
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    if (part.is_none()) return otherwise;
    const std::int64_t index = part.integer();
    return std::clamp(index < 0 ? std::max(index, -length - 1) + length : index, least, most);
  };
  return {bound(*parts[0], step < 0 ? most : 0), bound(*parts[1], step < 0 ? least : most),
          std::clamp(step, -length - 1, length + 1)};
}

template <class Take>
void for_each_place(const SliceBounds& bounds, const Take& take) {
  const auto [begin, end, step] = bounds;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    take(static_cast<std::size_t>(i));
  }
}

}  // namespace

void Interpreter::require_defined(const Value& value) const {
  if (value.is_undefined()) refuse("{}", value.problem());
}

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  if (++depth_ > limits_.depth) refuse("the template calls itself too deep");
  charge(1);
  line_ = expression.line;
  const auto child = [&](std::size_t i) { return evaluate(expression.children[i], scope); };
  Value result;
  switch (expression.kind) {
    case ExpressionKind::constant:
      result = expression.value;
      break;
    case ExpressionKind::name:
      result = name_value(expression, scope);
      break;
    case ExpressionKind::list:
    case ExpressionKind::tuple: {
      std::vector<Value> items;
      for (std::size_t i = 0; i < expression.children.size(); ++i) items.push_back(child(i));
      result =
          sequence(std::move(items), expression.kind == ExpressionKind::list ? SequenceKind::list
                                                                             : SequenceKind::tuple);
      break;
    }
    case ExpressionKind::mapping:
      result = mapping_value(expression, scope);
      break;
    case ExpressionKind::attribute:
      result = attribute(child(0), expression.name);
      break;
    case ExpressionKind::item: {
      const Value owner = child(0);
      result = item(owner, child(1));
      break;
    }
    case ExpressionKind::slice:
      result = slice_value(expression, scope);
      break;
    case ExpressionKind::call:
      result = call_value(expression, scope, nullptr);
      break;
    case ExpressionKind::filter: {
      const Value subject = child(0);
      result = filter(expression.name, subject, arguments_of(expression, scope));
      break;
    }
    case ExpressionKind::test: {
      const Value subject = child(0);
      result = test(expression.name, subject, arguments_of(expression, scope));
      break;
    }
    case ExpressionKind::negative:
    case ExpressionKind::positive:
      result = sign_value(expression, scope);
      break;
    case ExpressionKind::logical_not:
      result = !child(0).truth();
      break;
    case ExpressionKind::logical_and:
      result = child(0);
      if (result.truth()) result = child(1);
      break;
    case ExpressionKind::logical_or:
      result = child(0);
      if (!result.truth()) result = child(1);
      break;
    case ExpressionKind::arithmetic: {
      const Value left = child(0);
      const Value right = child(1);
      line_ = expression.line;
      result = arithmetic(expression.name, left, right);
      break;
    }
    case ExpressionKind::comparison:
      result = comparison_value(expression, scope);
      break;
    case ExpressionKind::concatenation: {
      std::string text;
      for (std::size_t i = 0; i < expression.children.size(); ++i) text += text_of(child(i));
      charge_bytes(text.size());
      result = std::move(text);
      break;
    }
    case ExpressionKind::condition:
      if (child(0).truth()) {
        result = child(1);
      } else if (expression.children.size() > 2) {
        result = child(2);
      } else {
        result = Value::missing("an if without else has no value where its condition is false");
      }
      break;
  }
  --depth_;
  return result;
}

Value Interpreter::name_value(const Expression& expression, Scope& scope) {
  const Value* const known = scope.find(expression.name);
  return known != nullptr
             ? *known
             : Value::missing(fmt::format("'{}' is undefined", shown(expression.name)));
}

Value Interpreter::mapping_value(const Expression& expression, Scope& scope) {
  std::vector<std::pair<Value, Value>> items;
  for (std::size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    Value key = evaluate(expression.children[i], scope);
    items.emplace_back(std::move(key), evaluate(expression.children[i + 1], scope));
  }
  return mapping(std::move(items));
}

Arguments Interpreter::arguments_of(const Expression& expression, Scope& scope) {
  Arguments arguments;
  for (std::size_t i = 1; i < expression.children.size(); ++i) {
    arguments.positional.push_back(evaluate(expression.children[i], scope));
  }
  for (const auto& [name, value] : expression.named) {
    arguments.named.emplace_back(name, evaluate(value, scope));
  }
  line_ = expression.line;
  return arguments;
}

Value Interpreter::call_value(const Expression& expression, Scope& scope, const Value* caller) {
  const Expression& callee = expression.children.front();
  Value owner;
  Function method = nullptr;
  Value function;
  if (callee.kind == ExpressionKind::attribute) {
    owner = evaluate(callee.children.front(), scope);
    method = find_method(owner, callee.name);
    if (method == nullptr) function = attribute(owner, callee.name);
  } else {
    function = evaluate(callee, scope);
  }
  Arguments arguments = arguments_of(expression, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  if (method != nullptr) return method(*this, owner, std::move(arguments));
  return call(function, std::move(arguments));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  if (!callee.is<Object*>() || !callee.object()->is_callable()) {
    refuse("a {} cannot be called", callee.type());
  }
  return callee.object()->call(*this, std::move(arguments));
}

Value Interpreter::attribute(const Value& owner, const std::string& name) {
  require_defined(owner);
  if (owner.is<Object*>()) return owner.object()->attribute(*this, name);
  if (const Function method = find_method(owner, name)) return make<BoundMethod>(owner, method);
  if (owner.is_mapping()) {
    charge(static_cast<std::int64_t>(owner.mapping().items.size() / 16));
    const Value* const found = owner.mapping().find(std::string_view(name));
    if (found != nullptr && !is_changing_method(owner, name)) return *found;
  }
  return missing_attribute(owner, name);
}

Value Interpreter::item(const Value& owner, const Value& key) {
  require_defined(owner);
  if (owner.is_mapping()) {
    charge(static_cast<std::int64_t>(owner.mapping().items.size() / 16));
    if (const Value* const found = owner.mapping().find(key)) return *found;
  } else if (key.is_integer() && owner.is_text()) {
    const std::string& text = owner.text();
    charge(static_cast<std::int64_t>(text.size() / 64));
    if (const auto place = place_of(key.integer(), length_of(text))) {
      const std::size_t at = byte_of(text, static_cast<std::int64_t>(*place));
      return text.substr(at, character_length(text[at]));
    }
  } else if (key.is_integer() && owner.is_sequence() &&
             owner.sequence().kind != SequenceKind::view) {
    const std::vector<Value>& items = owner.sequence().items;
    if (const auto place = place_of(key.integer(), static_cast<std::int64_t>(items.size()))) {
      return items[*place];
    }
  }
  if (key.is_text()) {
    if (!owner.is_mapping()) return attribute(owner, key.text());
    if (const Function method = find_method(owner, key.text())) {
      return make<BoundMethod>(owner, method);
    }
    return missing_attribute(owner, key.text());
  }
  return Value::missing(fmt::format("a {} has no such item", owner.type()));
}

Value Interpreter::slice_value(const Expression& expression, Scope& scope) {
  const Value owner = evaluate(expression.children[0], scope);
  const Value values[3] = {evaluate(expression.children[1], scope),
                           evaluate(expression.children[2], scope),
                           evaluate(expression.children[3], scope)};
  const Value* parts[3] = {&values[0], &values[1], &values[2]};
  require_defined(owner);
  if (owner.is_text()) {
    const std::vector<std::string_view> characters = characters_of(owner.text());
    charge(static_cast<std::int64_t>(characters.size() / 16));
    std::string text;
    for_each_place(bounds_of(parts, static_cast<std::int64_t>(characters.size()), *this),
                   [&](std::size_t i) { text += characters[i]; });
    charge_bytes(text.size());
    return text;
  }
  if (!owner.is_sequence() || owner.sequence().kind == SequenceKind::view) {
    refuse("a {} has no slices", owner.type());
  }
  const Sequence& whole = owner.sequence();
  std::vector<Value> items;
  for_each_place(bounds_of(parts, static_cast<std::int64_t>(whole.items.size()), *this),
                 [&](std::size_t i) { items.push_back(whole.items[i]); });
  return sequence(std::move(items), whole.kind);
}

std::vector<Value> Interpreter::items_of(const Value& value) {
  if (value.is_undefined()) return {};  // as in Jinja, a loop over nothing
  if (value.is_sequence()) {
    charge(static_cast<std::int64_t>(value.sequence().items.size()));
    return value.sequence().items;
  }
  std::vector<Value> items;
  if (value.is_mapping()) {
    for (const auto& [key, one] : value.mapping().items) items.push_back(key);
  } else if (value.is_text()) {
    charge(static_cast<std::int64_t>(value.text().size()));
    for (const std::string_view one : characters_of(value.text()))
      items.emplace_back(std::string(one));
  } else if (value.is<Object*>() && value.object()->is_iterable()) {
    items = value.object()->items(*this);
  } else {
    refuse("a {} cannot be looped over", value.type());
  }
  charge(static_cast<std::int64_t>(items.size()));
  return items;
}

Value Interpreter::filtered(const Expression& chain, const Value& subject, Scope& scope) {
  if (chain.kind != ExpressionKind::filter) return subject;  // the place of the block's output
  const Value inner = filtered(chain.children.front(), subject, scope);
  return filter(chain.name, inner, arguments_of(chain, scope));
}

Value Interpreter::filter(const std::string& name, const Value& subject, Arguments arguments) {
  const Function function = find_filter(name);
  if (function == nullptr) refuse("the filter '{}' is not known", shown(name));
  return function(*this, subject, std::move(arguments));
}

bool Interpreter::test(const std::string& name, const Value& subject, Arguments arguments) {
  const TestFunction function = find_test(name);
  if (function == nullptr) refuse("the test '{}' is not known", shown(name));
  return function(*this, subject, std::move(arguments));
}

}  // namespace tessera::tokenizers::jinja
