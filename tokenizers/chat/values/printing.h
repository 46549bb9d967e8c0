// Values as texts: Python's str() and repr(), and JSON.
#pragma once

#include <optional>
#include <string>

#include "tokenizers/chat/values/value.h"

namespace tessera::tokenizers::jinja {

// All throw std::invalid_argument with the reason for a value that has no text that means anything,
// as a function or a generator.
std::string print(const Value& value);  // str(value); undefined is empty
std::string represent(const Value& value);

struct JsonStyle {
  std::optional<std::string> indent = {};  // of a level; absent: all in one line
  std::optional<std::string> item_separator = {};
  std::optional<std::string> key_separator = {};
  bool ascii = false;
  bool sorted = false;
};
// json.dumps() of Python.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace tessera::tokenizers::jinja
