// Scalars over a JSON object.
#include "checkpoint/state/scalars.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera {
namespace {

using nlohmann::json;

// "position/samples" -> "position", "samples".
std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    parts.emplace_back(name.substr(begin, end - begin));
    TESSERA_REQUIRE(!parts.back().empty(), "a scalar cannot be named '{}'", name);
    begin = end + 1;
  }
  return parts;
}

// The value of that name, or null.
const json* find(const json& all, std::string_view name) {
  const json* value = &all;
  for (const std::string& part : parts_of(name)) {
    if (!value->is_object()) return nullptr;
    const auto child = value->find(part);
    if (child == value->end()) return nullptr;
    value = &*child;
  }
  return value;
}

Scalars& set_value(Scalars& scalars, std::string_view name, json value) {
  json* place = &checkpoint::json_of(scalars);
  for (const std::string& part : parts_of(name)) {
    TESSERA_REQUIRE(place->is_object() || place->is_null(),
                    "scalar '{}': what is before '{}' is a value already, not a group", name, part);
    place = &(*place)[part];
  }
  *place = std::move(value);
  return scalars;
}

constexpr std::uint64_t largest_int64 = std::numeric_limits<std::int64_t>::max();

template <class T>
bool holds(const json& value) {
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<std::uint64_t>() <= largest_int64);
  }
  if constexpr (std::is_same_v<T, std::uint64_t>)
    return value.is_number_unsigned() ||
           (value.is_number_integer() && value.get<std::int64_t>() >= 0);
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
}

}  // namespace

Scalars::Scalars() : data_(std::make_unique<Data>()) {}
Scalars::Scalars(const Scalars& other) : data_(std::make_unique<Data>(*other.data_)) {}
Scalars::Scalars(Scalars&& other) noexcept = default;
Scalars& Scalars::operator=(const Scalars& other) {
  if (this != &other) data_ = std::make_unique<Data>(*other.data_);
  return *this;
}
Scalars& Scalars::operator=(Scalars&& other) noexcept = default;
Scalars::~Scalars() = default;

bool Scalars::operator==(const Scalars& other) const {
  return data_->json == other.data_->json;
}

Scalars& Scalars::set(std::string_view name, bool value) {
  return set_value(*this, name, value);
}
Scalars& Scalars::set(std::string_view name, std::int64_t value) {
  return set_value(*this, name, value);
}
Scalars& Scalars::set(std::string_view name, std::uint64_t value) {
  return set_value(*this, name, value);
}
Scalars& Scalars::set(std::string_view name, int value) {
  return set_value(*this, name, value);
}
Scalars& Scalars::set(std::string_view name, double value) {
  return set_value(*this, name, value);
}
Scalars& Scalars::set(std::string_view name, std::string_view value) {
  return set_value(*this, name, std::string(value));
}
Scalars& Scalars::set(std::string_view name, const char* value) {
  return set_value(*this, name, std::string(value));
}

bool Scalars::contains(std::string_view name) const {
  return find(data_->json, name) != nullptr;
}

template <class T>
T Scalars::get(std::string_view name) const {
  const json* value = find(data_->json, name);
  TESSERA_CHECK(value != nullptr, ErrorCode::checkpoint, "the checkpoint has no scalar '{}'", name);
  TESSERA_CHECK(holds<T>(*value), ErrorCode::checkpoint,
                "scalar '{}' of the checkpoint is {}, which is not of the type asked for", name,
                value->dump());
  return value->get<T>();
}

template bool Scalars::get<bool>(std::string_view) const;
template std::int64_t Scalars::get<std::int64_t>(std::string_view) const;
template std::uint64_t Scalars::get<std::uint64_t>(std::string_view) const;
template double Scalars::get<double>(std::string_view) const;
template std::string Scalars::get<std::string>(std::string_view) const;

}  // namespace tessera
