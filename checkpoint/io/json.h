// JSON in a checkpoint: every key once, nesting bounded, valid UTF-8, nothing after the value.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tessera::checkpoint {

inline constexpr std::size_t json_depth_limit = 64;

// Throws Error(checkpoint) beginning with `source` (the file's path).
nlohmann::json parse_json(std::string_view text, const std::string& source);

// For files that a reader may ignore: the object that the text holds; null if the text is damaged
// or holds another value.
nlohmann::json object_or_null(std::string_view text);
// A member of an object that is a text; empty: there is none.
std::string text_member(const nlohmann::json& object, const char* key);

// The problem with text that nlohmann's parser would accept (byte order mark, raw NUL); empty:
// none.
std::string json_text_problem(std::string_view text);

// The problem with text that the parser does not read beyond byte `stopped_at`, if it is half of a
// surrogate pair in a \uXXXX; empty: another one. Python's json keeps such halves, and no tokenizer
// can read the text.
std::string lone_surrogate_problem(std::string_view text, std::size_t stopped_at);

// A number without a fraction that a T can hold; anything else is an Error(checkpoint). nlohmann's
// own get() cuts fractions off and wraps around.
template <class T>
T whole_number(const nlohmann::json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  TESSERA_CHECK(fits, ErrorCode::checkpoint, "found {} instead of a whole number{}",
                value.is_number() ? value.dump() : value.type_name(),
                std::in_range<T>(-1) ? "" : " from 0 on");
  return value.get<T>();
}

template <class T>
std::vector<T> whole_numbers(const nlohmann::json& values) {
  TESSERA_CHECK(values.is_array(), ErrorCode::checkpoint,
                "found {} instead of a list of whole numbers", values.type_name());
  std::vector<T> numbers;
  numbers.reserve(values.size());
  for (const nlohmann::json& value : values) numbers.push_back(whole_number<T>(value));
  return numbers;
}

}  // namespace tessera::checkpoint
