// Operators on values, with Python's rules for numbers, texts and lists.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tokenizers/chat/jinja/interpreter.h"

namespace tessera::tokenizers::jinja {

Value Interpreter::sign_value(const Expression& expression, Scope& scope) {
  const Value value = evaluate(expression.children.front(), scope);
  require_defined(value);
  const bool negative = expression.kind == ExpressionKind::negative;
  if (value.is<double>()) return negative ? -value.floating() : value.floating();
  if (!value.is_integer()) refuse("a {} has no sign", value.type());
  if (!negative) return value.integer();
  if (value.integer() == std::numeric_limits<std::int64_t>::min()) refuse("a number is too large");
  return -value.integer();
}

Value Interpreter::comparison_value(const Expression& expression, Scope& scope) {
  Value left = evaluate(expression.children.front(), scope);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(expression.children[i + 1], scope);
    line_ = expression.line;
    if (!compared(expression.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Interpreter::same(const Value& a, const Value& b) {
  charge(std::min(extent_of(a), extent_of(b)));
  return equals(a, b);
}

bool Interpreter::compared(const std::string& sign, const Value& a, const Value& b) {
  charge(1);
  for (const Value* const one : {&a, &b}) {
    const bool is_markup = one->is<Object*>() && one->object()->text() != nullptr;
    if (is_markup) refuse("the result of the filter safe is not compared");
  }
  if (sign == "==") return same(a, b);
  if (sign == "!=") return !same(a, b);
  if (sign == "in") return contains(b, a);
  if (sign == "not in") return !contains(b, a);
  const bool nan =
      a.is_number() && b.is_number() && (std::isnan(a.number()) || std::isnan(b.number()));
  const int found = order(a, b);
  if (nan) return false;
  if (sign == "<") return found < 0;
  if (sign == "<=") return found <= 0;
  return sign == ">" ? found > 0 : found >= 0;
}

int Interpreter::order(const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  charge(std::min(extent_of(a), extent_of(b)));
  int order = 0;
  if (!compare(a, b, order)) refuse("a {} and a {} have no order", a.type(), b.type());
  return order;
}

bool Interpreter::contains(const Value& container, const Value& one) {
  if (container.is_text()) {
    if (!one.is_text()) refuse("a {} cannot be searched in a text", one.type());
    charge(static_cast<std::int64_t>(container.text().size() / 64));
    return container.text().find(one.text()) != std::string::npos;
  }
  if (container.is_mapping()) {
    charge(static_cast<std::int64_t>(container.mapping().items.size() / 16));
    return container.mapping().find(one) != nullptr;
  }
  if (container.is_none() || container.is_number()) {
    refuse("nothing can be searched in a {}", container.type());
  }
  const std::vector<Value> items = items_of(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return same(item, one); });
}

namespace {

const std::string* markup_of(const Value& value) {
  return value.is<Object*>() ? value.object()->text() : nullptr;
}

// A text that is added to safe text, as Python's Markup does it.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '\'') {
      result += "&#39;";
    } else if (c == '"') {
      result += "&#34;";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

Value Interpreter::add(const Value& a, const Value& b) {
  const std::string* const left = markup_of(a);
  const std::string* const right = markup_of(b);
  if ((left != nullptr || a.is_text()) && (right != nullptr || b.is_text()) && left != right) {
    std::string text = left != nullptr ? *left : escaped(a.text());
    text += right != nullptr ? *right : escaped(b.text());
    charge_bytes(text.size());
    return make<Markup>(std::move(text));
  }
  if (a.is_integer() && b.is_integer()) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(a.integer(), b.integer(), &sum)) refuse("a number is too large");
    return sum;
  }
  if (a.is_number() && b.is_number()) return a.number() + b.number();
  if (a.is_text() && b.is_text()) {
    charge_bytes(a.text().size() + b.text().size());
    return a.text() + b.text();
  }
  if (a.is_sequence() && b.is_sequence()) {
    const SequenceKind kind = a.sequence().kind;
    const bool joins = kind == SequenceKind::list || kind == SequenceKind::tuple;
    if (joins && kind == b.sequence().kind) {
      charge(static_cast<std::int64_t>(a.sequence().items.size() + b.sequence().items.size()));
      std::vector<Value> items = a.sequence().items;
      items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
      return sequence(std::move(items), kind);
    }
  }
  refuse("a {} and a {} cannot be added", a.type(), b.type());
}

Value Interpreter::times(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a.integer(), b.integer(), &product)) refuse("a number is too large");
    return product;
  }
  if (a.is_number() && b.is_number()) return a.number() * b.number();
  const Value& repeated = a.is_integer() ? b : a;
  const Value& count = a.is_integer() ? a : b;
  if (count.is_integer()) {
    const auto times = std::clamp<std::int64_t>(count.integer(), 0, std::int64_t{1} << 40);
    if (repeated.is_text()) {
      const std::string& text = repeated.text();
      std::size_t bytes = 0;
      if (__builtin_mul_overflow(text.size(), static_cast<std::size_t>(times), &bytes)) {
        refuse("a text is too long");
      }
      charge_bytes(bytes);
      std::string result;
      result.reserve(bytes);
      while (result.size() < bytes) result += text;
      return result;
    }
    const bool is_list =
        repeated.is_sequence() && (repeated.sequence().kind == SequenceKind::list ||
                                   repeated.sequence().kind == SequenceKind::tuple);
    if (is_list) {
      const std::vector<Value>& items = repeated.sequence().items;
      std::int64_t length = 0;
      if (__builtin_mul_overflow(static_cast<std::int64_t>(items.size()), times, &length)) {
        refuse("a list is too long");
      }
      charge(length);
      std::vector<Value> all;
      while (static_cast<std::int64_t>(all.size()) < length) {
        all.insert(all.end(), items.begin(), items.end());
      }
      return sequence(std::move(all), repeated.sequence().kind);
    }
  }
  refuse("a {} and a {} cannot be multiplied", a.type(), b.type());
}

Value Interpreter::arithmetic(const std::string& sign, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  if (sign == "+") return add(a, b);
  if (sign == "*") return times(a, b);
  if (sign == "%" && a.is_text()) refuse("the operator % on a text is not supported; use ~");
  if (!a.is_number() || !b.is_number()) {
    refuse("the operator {} does not take a {} and a {}", sign, a.type(), b.type());
  }
  if (sign == "**") return raised(a, b);
  if (sign != "-") return quotient(sign, a, b);
  if (!a.is_integer() || !b.is_integer()) return a.number() - b.number();
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a.integer(), b.integer(), &difference))
    refuse("a number is too large");
  return difference;
}

Value Interpreter::quotient(const std::string& sign, const Value& a, const Value& b) {
  if (b.number() == 0) refuse("a division by zero");
  if (sign == "/") return a.number() / b.number();
  if (a.is_integer() && b.is_integer()) return whole_quotient(sign, a.integer(), b.integer());
  const double x = a.number();
  const double y = b.number();
  double rest = std::fmod(x, y);
  if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
  if (sign == "%") return rest == 0 ? std::copysign(0.0, y) : rest;
  return std::floor((x - rest) / y + 0.5);
}

// Python rounds towards minus infinity.
Value Interpreter::whole_quotient(const std::string& sign, std::int64_t a, std::int64_t b) {
  if (b == -1) {  // the machine's division overflows here
    if (sign == "%") return std::int64_t{0};
    if (a == std::numeric_limits<std::int64_t>::min()) refuse("a number is too large");
    return -a;
  }
  const std::int64_t rest = a % b;
  const bool inexact = rest != 0 && (rest < 0) != (b < 0);
  if (sign == "%") return inexact ? rest + b : rest;
  return a / b - (inexact ? 1 : 0);
}

Value Interpreter::raised(const Value& a, const Value& b) {
  if (!a.is_integer() || !b.is_integer() || b.integer() < 0) {
    const double power = std::pow(a.number(), b.number());
    if (!std::isfinite(power)) refuse("a number is too large, or no real number");
    return power;
  }
  const std::int64_t base = a.integer();
  if (base == 0 || base == 1) return b.integer() == 0 ? std::int64_t{1} : base;
  if (base == -1) return b.integer() % 2 == 0 ? std::int64_t{1} : std::int64_t{-1};
  std::int64_t power = 1;
  for (std::int64_t i = 0; i < b.integer(); ++i) {  // ends early: 2 to the power 63 is too large
    if (__builtin_mul_overflow(power, base, &power)) refuse("a number is too large");
  }
  return power;
}

}  // namespace tessera::tokenizers::jinja
