// Checked access to members.
#include "tokenizers/text/json_fields.h"

#include "base/error.h"

namespace tessera::tokenizers {

using nlohmann::json;

const json& member(const json& object, const char* name, const std::string& source) {
  TESSERA_CHECK(object.is_object(), ErrorCode::data, "{}: not a JSON object", source);
  const auto found = object.find(name);
  TESSERA_CHECK(found != object.end(), ErrorCode::data, "{}: has no '{}'", source, name);
  return *found;
}

bool has(const json& object, const char* name) {
  if (!object.is_object()) return false;
  const auto found = object.find(name);
  return found != object.end() && !found->is_null();
}

std::string string_of(const json& object, const char* name, const std::string& source) {
  const json& value = member(object, name, source);
  TESSERA_CHECK(value.is_string(), ErrorCode::data, "{}: '{}' is not a string", source, name);
  return value.get<std::string>();
}

std::string string_or(const json& object, const char* name, const char* otherwise,
                      const std::string& source) {
  return has(object, name) ? string_of(object, name, source) : otherwise;
}

bool bool_or(const json& object, const char* name, bool otherwise, const std::string& source) {
  if (!has(object, name)) return otherwise;
  const json& value = object[name];
  TESSERA_CHECK(value.is_boolean(), ErrorCode::data, "{}: '{}' is neither true nor false", source,
                name);
  return value.get<bool>();
}

std::int64_t integer_of(const json& object, const char* name, std::int64_t least, std::int64_t most,
                        const std::string& source) {
  const json& value = member(object, name, source);
  // A number too large for an int64 does not fit either.
  const bool fits =
      value.is_number_integer() && (!value.is_number_unsigned() ||
                                    value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
  TESSERA_CHECK(fits && value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most,
                ErrorCode::data, "{}: '{}' is not an integer from {} to {}", source, name, least,
                most);
  return value.get<std::int64_t>();
}

std::int64_t integer_or(const json& object, const char* name, std::int64_t otherwise,
                        std::int64_t least, std::int64_t most, const std::string& source) {
  return has(object, name) ? integer_of(object, name, least, most, source) : otherwise;
}

std::string type_of(const json& object, const std::string& source) {
  return string_of(object, "type", source);
}

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 60;
  const std::string quoted = json(std::string(text.substr(0, longest)))
                                 .dump(-1, ' ', true, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2) + (text.size() > longest ? "..." : "");
}

}  // namespace tessera::tokenizers
