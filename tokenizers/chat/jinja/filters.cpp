// Filters of sequences and of single values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/values/characters.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers::jinja {
namespace {

// "a.b" or 0 of `map(attribute=..)`: items of items.
Value value_at(Interpreter& interpreter, Value value, const Value& path) {
  if (path.is_integer()) return interpreter.item(value, path);
  if (!path.is_text()) interpreter.refuse("an attribute is a name, not a {}", path.type());
  std::string_view rest = path.text();
  for (bool more = true; more;) {
    const std::size_t dot = rest.find('.');
    more = dot != std::string_view::npos;
    const std::string part(rest.substr(0, dot));
    if (more) rest = rest.substr(dot + 1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = error == std::errc{} && end == part.data() + part.size() && number >= 0;
    value = interpreter.item(value, is_number ? Value(number) : Value(part));
  }
  return value;
}

// A value as sorting sees it: texts without their case, unless it matters.
Value sort_key(Interpreter& interpreter, const Value& value, const Value* path, bool with_case) {
  Value key = path != nullptr && !path->is_none() ? value_at(interpreter, value, *path) : value;
  if (key.is_text() && !with_case) return lower(key.text());
  return key;
}

Value filter_default(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"default_value", "boolean"});
  const bool absent = subject.is_undefined() || (given.truth(1, false) && !subject.truth());
  if (!absent) return subject;
  return given[0] != nullptr ? *given[0] : Value("");
}

Value filter_length(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  if (subject.is_undefined()) return std::int64_t{0};
  if (subject.is_text()) return length_of(subject.text());
  if (subject.is_mapping()) return static_cast<std::int64_t>(subject.mapping().items.size());
  if (subject.is_sequence()) return static_cast<std::int64_t>(subject.sequence().items.size());
  interpreter.refuse("a {} has no length", subject.type());
}

Value filter_first(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  const std::vector<Value> items = interpreter.items_of(subject);
  return items.empty() ? Value::missing("there is no first item") : items.front();
}

Value filter_last(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  if (subject.is<Object*>()) interpreter.refuse("a {} has no last item", subject.type());
  const std::vector<Value> items = interpreter.items_of(subject);
  return items.empty() ? Value::missing("there is no last item") : items.back();
}

Value filter_join(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"d", "attribute"});
  const std::string separator = given[0] != nullptr ? interpreter.text_of(*given[0]) : "";
  std::string text;
  bool first = true;
  for (const Value& item : interpreter.items_of(subject)) {
    const bool has_path = given[1] != nullptr && !given[1]->is_none();
    const std::string part =
        interpreter.text_of(has_path ? value_at(interpreter, item, *given[1]) : item);
    interpreter.charge_growth(text.size(), part.size() + separator.size());
    if (!std::exchange(first, false)) text += separator;
    text += part;
  }
  return text;
}

Value filter_list(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  return interpreter.sequence(interpreter.items_of(subject));
}

Value filter_items(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  if (subject.is_undefined()) return interpreter.generator({});
  if (!subject.is_mapping()) interpreter.refuse("a {} has no items", subject.type());
  std::vector<Value> items;
  for (const auto& [key, value] : subject.mapping().items) {
    items.push_back(interpreter.sequence({key, value}, SequenceKind::tuple));
  }
  return interpreter.generator(std::move(items));
}

Value filter_map(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  if (!subject.truth()) return interpreter.generator({});  // as in Jinja, None too
  std::vector<Value> results;
  std::vector<Value> items = interpreter.items_of(subject);
  if (arguments.positional.empty()) {
    const Parameters given(interpreter, std::move(arguments), {"attribute", "default"});
    for (Value& item : items) {
      Value value = value_at(interpreter, std::move(item), given.required(0));
      const bool replaced = value.is_undefined() && given[1] != nullptr && !given[1]->is_none();
      if (replaced) value = *given[1];
      results.push_back(std::move(value));
    }
    return interpreter.generator(std::move(results));
  }
  const Value name = arguments.positional.front();
  if (!name.is_text()) interpreter.refuse("map takes the name of a filter");
  arguments.positional.erase(arguments.positional.begin());
  for (const Value& item : items) {
    results.push_back(interpreter.filter(name.text(), item, arguments));
  }
  return interpreter.generator(std::move(results));
}

// select, reject, selectattr and rejectattr.
Value choose(Interpreter& interpreter, const Value& subject, Arguments arguments, bool by_attribute,
             bool wanted) {
  if (!subject.truth()) return interpreter.generator({});  // as in Jinja, None too
  Value path;
  auto& given = arguments.positional;
  if (by_attribute) {
    if (given.empty()) interpreter.refuse("the name of an attribute is missing");
    path = given.front();
    given.erase(given.begin());
  }
  Value name;
  if (!given.empty()) {
    name = given.front();
    given.erase(given.begin());
    if (!name.is_text()) interpreter.refuse("the name of a test is a text, not a {}", name.type());
  }
  std::vector<Value> kept;
  for (const Value& item : interpreter.items_of(subject)) {
    const Value value = by_attribute ? value_at(interpreter, item, path) : item;
    const bool holds =
        name.is_undefined() ? value.truth() : interpreter.test(name.text(), value, arguments);
    if (holds == wanted) kept.push_back(item);
  }
  return interpreter.generator(std::move(kept));
}

Value filter_select(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return choose(interpreter, subject, std::move(arguments), false, true);
}
Value filter_reject(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return choose(interpreter, subject, std::move(arguments), false, false);
}
Value filter_selectattr(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return choose(interpreter, subject, std::move(arguments), true, true);
}
Value filter_rejectattr(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return choose(interpreter, subject, std::move(arguments), true, false);
}

Value filter_reverse(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  std::vector<Value> items = interpreter.items_of(subject);
  std::reverse(items.begin(), items.end());
  if (!subject.is_text()) return interpreter.generator(std::move(items));
  std::string text;
  for (const Value& one : items) text += one.text();
  return text;
}

// Values with their keys, in the order of the keys.
std::vector<std::pair<Value, Value>> in_order(Interpreter& interpreter,
                                              std::vector<std::pair<Value, Value>> items,
                                              bool reversed) {
  for (const auto& [key, value] : items) interpreter.charge(16 * extent_of(key));
  for (std::size_t i = 1; i < items.size(); ++i) {  // before sorting, which must not fail
    (void)interpreter.order(items[0].first, items[i].first);
  }
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    int order = 0;
    return compare(a.first, b.first, order) && (reversed ? order > 0 : order < 0);
  });
  return items;
}

Value filter_sort(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments),
                         {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : interpreter.items_of(subject)) {
    Value key = sort_key(interpreter, item, given[2], given.truth(1, false));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  std::vector<Value> items;
  for (auto& one : in_order(interpreter, std::move(keyed), given.truth(0, false))) {
    items.push_back(std::move(one.second));
  }
  return interpreter.sequence(std::move(items));
}

Value filter_dictsort(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"case_sensitive", "by", "reverse"});
  if (!subject.is_mapping()) interpreter.refuse("a {} is not a mapping", subject.type());
  const std::string by = given.text(1, "key");
  if (by != "key" && by != "value") interpreter.refuse("dictsort is by key or value");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : subject.mapping().items) {
    keyed.emplace_back(
        sort_key(interpreter, by == "key" ? key : value, nullptr, given.truth(0, false)),
        interpreter.sequence({key, value}, SequenceKind::tuple));
  }
  std::vector<Value> items;
  for (auto& one : in_order(interpreter, std::move(keyed), given.truth(2, false))) {
    items.push_back(std::move(one.second));
  }
  return interpreter.sequence(std::move(items));
}

Value filter_unique(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"case_sensitive", "attribute"});
  std::vector<Value> seen;
  std::vector<Value> items;
  for (Value& item : interpreter.items_of(subject)) {
    Value key = sort_key(interpreter, item, given[1], given.truth(0, false));
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& one) { return interpreter.same(one, key); });
    if (known) continue;
    seen.push_back(std::move(key));
    items.push_back(std::move(item));
  }
  return interpreter.generator(std::move(items));
}

Value extreme(Interpreter& interpreter, const Value& subject, Arguments arguments, int wanted) {
  const Parameters given(interpreter, std::move(arguments), {"case_sensitive", "attribute"});
  const std::vector<Value> items = interpreter.items_of(subject);
  if (items.empty()) return Value::missing("there is no item");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    Value key = sort_key(interpreter, item, given[1], given.truth(0, false));
    if (best != nullptr && interpreter.order(key, best_key) * wanted <= 0) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value filter_min(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return extreme(interpreter, subject, std::move(arguments), -1);
}
Value filter_max(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return extreme(interpreter, subject, std::move(arguments), 1);
}

Value filter_sum(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"attribute", "start"});
  Value sum = given[1] != nullptr ? *given[1] : Value(std::int64_t{0});
  for (Value& item : interpreter.items_of(subject)) {
    const bool has_path = given[0] != nullptr && !given[0]->is_none();
    sum = interpreter.add(sum, has_path ? value_at(interpreter, std::move(item), *given[0]) : item);
  }
  return sum;
}

Value filter_batch(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"linecount", "fill_with"});
  const std::int64_t size = given.integer(0, 0);
  if (size < 1 || size > 1'000'000) interpreter.refuse("batch takes a size of at least 1");
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (Value& item : interpreter.items_of(subject)) {
    if (std::cmp_equal(batch.size(), size)) {
      batches.push_back(interpreter.sequence(std::exchange(batch, {})));
    }
    batch.push_back(std::move(item));
  }
  if (!batch.empty()) {
    const bool fills = given[1] != nullptr && !given[1]->is_none();
    if (fills) interpreter.charge(size);
    while (fills && std::cmp_less(batch.size(), size)) batch.push_back(*given[1]);
    batches.push_back(interpreter.sequence(std::move(batch)));
  }
  return interpreter.generator(std::move(batches));
}

Value filter_abs(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  if (!subject.is_number()) interpreter.refuse("a {} is not a number", subject.type());
  if (!subject.is_integer()) return std::fabs(subject.number());
  return subject.integer() < 0 ? interpreter.times(subject, std::int64_t{-1}) : subject.integer();
}

// The number that a text is, of this type; nothing if it is none.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  text = stripped_left(stripped_right(text));
  if (text.starts_with('+')) text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Value filter_int(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"default", "base"});
  if (given.integer(1, 10) != 10) interpreter.refuse("int() has the base 10 alone");
  Value otherwise = given[0] != nullptr ? *given[0] : Value(std::int64_t{0});
  if (subject.is_undefined()) interpreter.refuse("{}", subject.problem());
  if (subject.is_integer()) return subject.integer();
  std::optional<double> number;
  if (subject.is<double>()) number = subject.floating();
  if (subject.is_text()) {
    if (const auto whole = number_of<std::int64_t>(subject.text())) return *whole;
    number = number_of<double>(subject.text());
  }
  if (!number || !std::isfinite(*number)) return otherwise;
  if (std::fabs(*number) >= 9.2e18) interpreter.refuse("a number is too large");
  return static_cast<std::int64_t>(*number);
}

Value filter_float(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"default"});
  if (subject.is_undefined()) interpreter.refuse("{}", subject.problem());
  if (subject.is_number()) return subject.number();
  if (subject.is_text()) {
    if (const auto number = number_of<double>(subject.text())) return *number;
  }
  return given[0] != nullptr ? *given[0] : Value(0.0);
}

Value filter_round(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"precision", "method"});
  if (!subject.is_number()) interpreter.refuse("a {} is not a number", subject.type());
  const std::int64_t digits = given.integer(0, 0);
  const std::string method = given.text(1, "common");
  if (digits < 0 || digits > 15) interpreter.refuse("round takes 0 to 15 digits");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return std::ceil(subject.number() * scale) / scale;
  if (method == "floor") return std::floor(subject.number() * scale) / scale;
  if (method != "common") interpreter.refuse("round knows common, ceil and floor");
  if (subject.is_integer()) return subject.integer();  // round() of a whole number is whole
  // The nearest decimal number, ties to even, as round() of Python.
  return std::strtod(fmt::format("{:.{}f}", subject.number(), digits).c_str(), nullptr);
}

constexpr NamedFunction filters[] = {
    {"default", &filter_default},
    {"d", &filter_default},
    {"length", &filter_length},
    {"count", &filter_length},
    {"first", &filter_first},
    {"last", &filter_last},
    {"join", &filter_join},
    {"list", &filter_list},
    {"items", &filter_items},
    {"map", &filter_map},
    {"select", &filter_select},
    {"reject", &filter_reject},
    {"selectattr", &filter_selectattr},
    {"rejectattr", &filter_rejectattr},
    {"reverse", &filter_reverse},
    {"sort", &filter_sort},
    {"dictsort", &filter_dictsort},
    {"unique", &filter_unique},
    {"min", &filter_min},
    {"max", &filter_max},
    {"sum", &filter_sum},
    {"batch", &filter_batch},
    {"abs", &filter_abs},
    {"int", &filter_int},
    {"float", &filter_float},
    {"round", &filter_round},
};

}  // namespace

Function find_filter(std::string_view name) {
  const auto* const row = std::find_if(std::begin(filters), std::end(filters),
                                       [&](const NamedFunction& one) { return one.name == name; });
  return row != std::end(filters) ? row->function : find_text_filter(name);
}

}  // namespace tessera::tokenizers::jinja
