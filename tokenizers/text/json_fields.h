// Members of a tokenizer file's JSON, with errors for wrong types and values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// All functions throw Error(data) beginning with `source`, which names the file and the place in
// it.
const nlohmann::json& member(const nlohmann::json& json, const char* name,
                             const std::string& source);
// True if it is present and not null.
bool has(const nlohmann::json& json, const char* name);
std::string string_of(const nlohmann::json& json, const char* name, const std::string& source);
std::string string_or(const nlohmann::json& json, const char* name, const char* otherwise,
                      const std::string& source);
bool bool_or(const nlohmann::json& json, const char* name, bool otherwise,
             const std::string& source);
std::int64_t integer_of(const nlohmann::json& json, const char* name, std::int64_t least,
                        std::int64_t most, const std::string& source);
std::int64_t integer_or(const nlohmann::json& json, const char* name, std::int64_t otherwise,
                        std::int64_t least, std::int64_t most, const std::string& source);
// The element's `type`.
std::string type_of(const nlohmann::json& json, const std::string& source);

// A name from a file as shown in messages: control characters escaped, long names cut.
std::string shown(std::string_view text);

}  // namespace tessera::tokenizers
