// Truth, equality and order as Python has them.
#include "tokenizers/chat/values/value.h"

#include <algorithm>
#include <stdexcept>

#include "tokenizers/chat/values/object.h"

namespace tessera::tokenizers::jinja {
namespace {

int nesting_of(const Value& value) {
  if (value.is_sequence()) return value.sequence().nesting;
  if (value.is_mapping()) return value.mapping().nesting;
  return 0;
}

int nested(int deepest) {
  if (deepest >= most_nesting) throw std::length_error("values are nested too deep");
  return deepest + 1;
}

std::int64_t grown(std::int64_t extent, const Value& item) {
  extent += extent_of(item);
  if (extent > largest_extent) throw std::length_error("a value holds too many values");
  return extent;
}

template <class T>
int three_way(const T& a, const T& b) {
  if (a < b) return -1;
  return b < a ? 1 : 0;
}

// Whole numbers are compared exactly.
int order_of_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return three_way(a.integer(), b.integer());
  return three_way(a.number(), b.number());
}

bool same_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), equals);
}

}  // namespace

std::int64_t extent_of(const Value& value) {
  if (value.is_text()) return 1 + static_cast<std::int64_t>(value.text().size() / 16);
  if (value.is_sequence()) return value.sequence().extent;
  return value.is_mapping() ? value.mapping().extent : 1;
}
Value Value::missing(std::string problem) {
  return Undefined{std::make_shared<const std::string>(std::move(problem))};
}

std::string Value::problem() const {
  const auto& why = std::get<Undefined>(held_).problem;
  return why ? *why : "a value is undefined";
}

std::int64_t Value::integer() const {
  return is<bool>() ? std::int64_t{boolean()} : std::get<std::int64_t>(held_);
}

double Value::number() const {
  return is<double>() ? floating() : static_cast<double>(integer());
}

bool Value::truth() const {
  if (is<bool>()) return boolean();
  if (is<std::int64_t>()) return integer() != 0;
  if (is<double>()) return floating() != 0;
  if (is_text()) return !text().empty();
  if (is_sequence()) return !sequence().items.empty();
  if (is_mapping()) return !mapping().items.empty();
  return is<Object*>() && object()->truth();
}

std::string_view Value::type() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is<bool>()) return "bool";
  if (is<std::int64_t>()) return "int";
  if (is<double>()) return "float";
  if (is_text()) return "str";
  if (is_mapping()) return "dict";
  if (is<Object*>()) return object()->type();
  switch (sequence().kind) {
    case SequenceKind::list:
      return "list";
    case SequenceKind::tuple:
      return "tuple";
    case SequenceKind::range:
      return "range";
    case SequenceKind::view:
      break;
  }
  return "dict view";
}

const Value* Mapping::find(const Value& key) const {
  if (key.is_text()) return find(std::string_view(key.text()));
  for (const auto& [name, value] : items) {
    if (equals(name, key)) return &value;
  }
  return nullptr;
}

const Value* Mapping::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.is_text() && name.text() == key) return &value;
  }
  return nullptr;
}

Value make_sequence(std::vector<Value> items, SequenceKind kind) {
  int deepest = 0;
  std::int64_t extent = 1;
  for (const Value& item : items) {
    deepest = std::max(deepest, nesting_of(item));
    extent = grown(extent, item);
  }
  return std::make_shared<const Sequence>(
      Sequence{kind, std::move(items), nested(deepest), extent});
}

Value make_mapping(std::vector<std::pair<Value, Value>>&& items) {
  Mapping mapping;
  int deepest = 0;
  for (auto& [key, value] : items) {
    deepest = std::max({deepest, nesting_of(key), nesting_of(value)});
    mapping.extent = grown(grown(mapping.extent, key), value);
    // The names of most mappings differ, and there are few.
    if (const Value* const earlier = mapping.find(key)) {
      const auto place = std::find_if(mapping.items.begin(), mapping.items.end(),
                                      [&](const auto& one) { return &one.second == earlier; });
      place->second = std::move(value);
    } else {
      mapping.items.emplace_back(std::move(key), std::move(value));
    }
  }
  mapping.nesting = nested(deepest);
  return std::make_shared<const Mapping>(std::move(mapping));
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_none() || a.is_undefined()) {
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
  }
  if (a.is_sequence() && b.is_sequence()) {
    return a.sequence().kind == b.sequence().kind &&
           same_items(a.sequence().items, b.sequence().items);
  }
  if (a.is_mapping() && b.is_mapping()) {
    const Mapping& left = a.mapping();
    const Mapping& right = b.mapping();
    return left.items.size() == right.items.size() &&
           std::all_of(left.items.begin(), left.items.end(), [&](const auto& one) {
             const Value* const other = right.find(one.first);
             return other != nullptr && equals(one.second, *other);
           });
  }
  return a.is<Object*>() && b.is<Object*>() && a.object() == b.object();
}

bool compare(const Value& a, const Value& b, int& order) {
  if (a.is_number() && b.is_number()) {
    order = order_of_numbers(a, b);
    return true;
  }
  if (a.is_text() && b.is_text()) {  // the order of UTF-8 is that of the characters
    order = a.text().compare(b.text());
    return true;
  }
  if (!a.is_sequence() || !b.is_sequence()) return false;
  const Sequence& left = a.sequence();
  const Sequence& right = b.sequence();
  const bool ordered = left.kind == SequenceKind::list || left.kind == SequenceKind::tuple;
  if (!ordered || left.kind != right.kind) return false;
  for (std::size_t i = 0; i < left.items.size() && i < right.items.size(); ++i) {
    if (!equals(left.items[i], right.items[i]))
      return compare(left.items[i], right.items[i], order);
  }
  order = three_way(left.items.size(), right.items.size());
  return true;
}

}  // namespace tessera::tokenizers::jinja
