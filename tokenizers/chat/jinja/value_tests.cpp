// Tests: what is written behind `is`.
#include <algorithm>
#include <array>
#include <utility>

#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/values/characters.h"

namespace tessera::tokenizers::jinja {
namespace {

// A test of a value alone.
template <class Check>
bool alone(Interpreter& interpreter, Arguments arguments, const Check& check) {
  const Parameters none(interpreter, std::move(arguments), {});
  return check();
}

// A test with one more value.
Value operand(Interpreter& interpreter, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"other"});
  return given.required(0);
}

std::int64_t whole(Interpreter& interpreter, const Value& value) {
  if (value.is_undefined()) interpreter.refuse("{}", value.problem());
  if (!value.is_integer()) interpreter.refuse("a {} is not a whole number", value.type());
  return value.integer();
}

bool is_markup(const Value& value) {
  return value.is<Object*>() && value.object()->text() != nullptr;
}

bool is_iterable(const Value& value) {
  if (is_markup(value)) return true;
  if (value.is<Object*>()) return value.object()->is_iterable();
  return value.is_undefined() || value.is_text() || value.is_sequence() || value.is_mapping();
}

bool is_sequence(const Value& value) {
  const bool view = value.is_sequence() && value.sequence().kind == SequenceKind::view;
  return value.is_undefined() || value.is_text() || value.is_mapping() || is_markup(value) ||
         (value.is_sequence() && !view);
}

bool same_object(const Value& a, const Value& b) {
  if (a.is_none() || a.is<bool>()) return a.type() == b.type() && equals(a, b);
  if (a.is<Object*>()) return equals(a, b);
  if (a.is_sequence() && b.is_sequence()) return &a.sequence() == &b.sequence();
  if (a.is_mapping() && b.is_mapping()) return &a.mapping() == &b.mapping();
  return false;
}

bool test_sameas(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Value other = operand(interpreter, std::move(arguments));
  const bool unclear = value.is_text() || (value.is_number() && !value.is<bool>());
  if (unclear && interpreter.same(value, other)) {
    interpreter.refuse("sameas of a {} is not supported; use ==", value.type());
  }
  return same_object(value, other);
}

bool has_case(Interpreter& interpreter, const Value& value, const char* property) {
  return all_are(interpreter.text_of(value), property);
}

#define TESSERA_TEST(check)                                                 \
  [](Interpreter& interpreter, const Value& value, Arguments arguments) {   \
    return alone(interpreter, std::move(arguments), [&] { return check; }); \
  }
#define TESSERA_TEST_WITH(check)                                          \
  [](Interpreter& interpreter, const Value& value, Arguments arguments) { \
    const Value other = operand(interpreter, std::move(arguments));       \
    return check;                                                         \
  }

struct NamedTest {
  std::string_view name;
  TestFunction function;
};

const NamedTest tests[] = {
    {"defined", TESSERA_TEST(!value.is_undefined())},
    {"undefined", TESSERA_TEST(value.is_undefined())},
    {"none", TESSERA_TEST(value.is_none())},
    {"boolean", TESSERA_TEST(value.is<bool>())},
    {"true", TESSERA_TEST(value.is<bool>() && value.boolean())},
    {"false", TESSERA_TEST(value.is<bool>() && !value.boolean())},
    {"string", TESSERA_TEST(value.is_text() || is_markup(value))},
    {"number", TESSERA_TEST(value.is_number())},
    {"integer", TESSERA_TEST(value.is<std::int64_t>())},
    {"float", TESSERA_TEST(value.is<double>())},
    {"mapping", TESSERA_TEST(value.is_mapping())},
    {"iterable", TESSERA_TEST(is_iterable(value))},
    {"sequence", TESSERA_TEST(is_sequence(value))},
    {"callable", TESSERA_TEST(value.is<Object*>() && value.object()->is_callable())},
    {"odd", TESSERA_TEST(whole(interpreter, value) % 2 != 0)},
    {"even", TESSERA_TEST(whole(interpreter, value) % 2 == 0)},
    {"lower", TESSERA_TEST(has_case(interpreter, value, "lower"))},
    {"upper", TESSERA_TEST(has_case(interpreter, value, "upper"))},
    {"filter", TESSERA_TEST(value.is_text() && find_filter(value.text()) != nullptr)},
    {"test", TESSERA_TEST(value.is_text() && find_test(value.text()) != nullptr)},
    {"sameas", &test_sameas},
    {"==", TESSERA_TEST_WITH(interpreter.same(value, other))},
    {"eq", TESSERA_TEST_WITH(interpreter.same(value, other))},
    {"equalto", TESSERA_TEST_WITH(interpreter.same(value, other))},
    {"!=", TESSERA_TEST_WITH(!interpreter.same(value, other))},
    {"ne", TESSERA_TEST_WITH(!interpreter.same(value, other))},
    {"<", TESSERA_TEST_WITH(interpreter.order(value, other) < 0)},
    {"lt", TESSERA_TEST_WITH(interpreter.order(value, other) < 0)},
    {"lessthan", TESSERA_TEST_WITH(interpreter.order(value, other) < 0)},
    {"<=", TESSERA_TEST_WITH(interpreter.order(value, other) <= 0)},
    {"le", TESSERA_TEST_WITH(interpreter.order(value, other) <= 0)},
    {">", TESSERA_TEST_WITH(interpreter.order(value, other) > 0)},
    {"gt", TESSERA_TEST_WITH(interpreter.order(value, other) > 0)},
    {"greaterthan", TESSERA_TEST_WITH(interpreter.order(value, other) > 0)},
    {">=", TESSERA_TEST_WITH(interpreter.order(value, other) >= 0)},
    {"ge", TESSERA_TEST_WITH(interpreter.order(value, other) >= 0)},
    {"in", TESSERA_TEST_WITH(interpreter.contains(other, value))},
    {"divisibleby",
     TESSERA_TEST_WITH(equals(interpreter.remainder(value, other), std::int64_t{0}))},
};

#undef TESSERA_TEST
#undef TESSERA_TEST_WITH

}  // namespace

TestFunction find_test(std::string_view name) {
  const auto* const row = std::find_if(std::begin(tests), std::end(tests),
                                       [&](const NamedTest& one) { return one.name == name; });
  return row != std::end(tests) ? row->function : nullptr;
}

}  // namespace tessera::tokenizers::jinja
