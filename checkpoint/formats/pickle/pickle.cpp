// Typed access to the values of a pickle.
#include "checkpoint/formats/pickle/pickle.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera::checkpoint::formats {

std::string_view name_of(PickleKind kind) {
  switch (kind) {
    case PickleKind::none:
      return "None";
    case PickleKind::boolean:
      return "a boolean";
    case PickleKind::integer:
      return "an integer";
    case PickleKind::big_integer:
      return "an integer of more than 64 bits";
    case PickleKind::real:
      return "a float";
    case PickleKind::text:
      return "a string";
    case PickleKind::bytes:
      return "bytes";
    case PickleKind::list:
      return "a list";
    case PickleKind::tuple:
      return "a tuple";
    case PickleKind::dict:
      return "a dict";
    case PickleKind::set:
      return "a set";
    case PickleKind::global:
      return "a global";
    case PickleKind::object:
      return "an object";
    case PickleKind::persistent:
      return "a persistent id";
  }
  return "a value";
}

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 160;
  const bool cut = text.size() > longest;
  return nlohmann::json(std::string(text.substr(0, longest)))
             .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
         (cut ? "..." : "");
}

const std::string& PickleValue::source() const {
  return pickle_->source_;
}

PickleKind PickleValue::kind() const {
  return pickle_->nodes_[id_].kind;
}

void PickleValue::expect(PickleKind wanted) const {
  TESSERA_CHECK(kind() == wanted, ErrorCode::checkpoint, "{} has {} where {} belongs",
                pickle_->source_, name_of(kind()), name_of(wanted));
}

bool PickleValue::is_global(std::string_view name) const {
  return is(PickleKind::global) && global() == name;
}

bool PickleValue::is_object_of(std::string_view name) const {
  return is(PickleKind::object) && at(0).is_global(name);
}

bool PickleValue::boolean() const {
  expect(PickleKind::boolean);
  return pickle_->nodes_[id_].integer != 0;
}

std::int64_t PickleValue::integer() const {
  expect(PickleKind::integer);
  return pickle_->nodes_[id_].integer;
}

double PickleValue::number() const {
  if (is(PickleKind::integer)) return static_cast<double>(integer());
  expect(PickleKind::real);
  return pickle_->nodes_[id_].real;
}

const std::string& PickleValue::text() const {
  expect(PickleKind::text);
  return pickle_->texts_[pickle_->nodes_[id_].index];
}

const std::string& PickleValue::global() const {
  expect(PickleKind::global);
  return pickle_->texts_[pickle_->nodes_[id_].index];
}

const std::vector<std::uint32_t>& PickleValue::items() const {
  static const std::vector<std::uint32_t> nothing;
  switch (kind()) {
    case PickleKind::list:
    case PickleKind::tuple:
    case PickleKind::set:
    case PickleKind::dict:
    case PickleKind::object:
    case PickleKind::persistent:
      return pickle_->items_[pickle_->nodes_[id_].index];
    default:
      return nothing;
  }
}

std::size_t PickleValue::size() const {
  return is(PickleKind::dict) ? items().size() / 2 : items().size();
}

PickleValue PickleValue::at(std::size_t i) const {
  TESSERA_CHECK(i < items().size(), ErrorCode::checkpoint, "{} has {} of {} values, too few",
                pickle_->source_, name_of(kind()), items().size());
  return {*pickle_, items()[i]};
}

PickleValue PickleValue::key(std::size_t i) const {
  expect(PickleKind::dict);
  return at(2 * i);
}

PickleValue PickleValue::value(std::size_t i) const {
  expect(PickleKind::dict);
  return at(2 * i + 1);
}

std::optional<PickleValue> PickleValue::find(std::string_view text_key) const {
  if (!is(PickleKind::dict)) return std::nullopt;
  for (std::size_t i = size(); i > 0; --i) {
    const PickleValue candidate = key(i - 1);
    if (candidate.is(PickleKind::text) && candidate.text() == text_key) return value(i - 1);
  }
  return std::nullopt;
}

PickleValue PickleValue::require(std::string_view text_key) const {
  const auto found = find(text_key);
  TESSERA_CHECK(found.has_value(), ErrorCode::checkpoint, "{}: no '{}' in {}", pickle_->source_,
                text_key, name_of(kind()));
  return *found;
}

PickleValue PickleValue::argument(std::size_t i) const {
  expect(PickleKind::object);
  return at(1).at(i);
}

std::size_t PickleValue::argument_count() const {
  expect(PickleKind::object);
  return at(1).size();
}

std::optional<PickleValue> PickleValue::state() const {
  expect(PickleKind::object);
  if (items().size() < 3) return std::nullopt;
  return at(2);
}

}  // namespace tessera::checkpoint::formats
