// Reads the parts of a tokenizer.json that may have any form: what is not there is empty.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::checkpoint::formats {

inline const nlohmann::json& part_of(const nlohmann::json& object, const char* key) {
  static const nlohmann::json nothing;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : nothing;
}

inline std::string text_at(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = part_of(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

inline bool flag_at(const nlohmann::json& object, const char* key, bool absent) {
  const nlohmann::json& value = part_of(object, key);
  return value.is_boolean() ? value.get<bool>() : absent;
}

// A component, or those of a Sequence, whose list has the key `list`.
inline std::vector<const nlohmann::json*> components(const nlohmann::json& component,
                                                     const char* list) {
  std::vector<const nlohmann::json*> parts;
  if (text_at(component, "type") != "Sequence") {
    if (component.is_object()) parts.push_back(&component);
    return parts;
  }
  for (const nlohmann::json& part : part_of(component, list)) {
    for (const nlohmann::json* inner : components(part, list)) parts.push_back(inner);
  }
  return parts;
}

}  // namespace tessera::checkpoint::formats
