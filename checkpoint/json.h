// JSON as a checkpoint may contain it: every key once, nesting bounded, valid UTF-8, nothing after
// the value.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace tessera::checkpoint {

inline constexpr std::size_t json_depth_limit = 64;

// Throws Error(checkpoint) beginning with `source` (the file's path).
nlohmann::json parse_json(std::string_view text, const std::string& source);

// What is wrong with text that nlohmann's parser would let pass (byte order mark, raw NUL), or
// empty.
std::string json_text_problem(std::string_view text);

}  // namespace tessera::checkpoint
