// From a YAML value to a typed one, with messages that name the wanted and the found value.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "models/config/value_range.h"
#include "training/recipe/other_words.h"
#include "training/recipe/yaml/yaml_tree.h"

namespace tessera::training {

using models::above;
using models::at_least;
using models::from_up_to;
using models::Range;

// One spelling of an enumerated value. Other spellings of the same value follow it; the first one
// is written.
template <class T>
struct Choice {
  std::string_view name;
  T value;
  bool available = true;
  bool listed = true;  // false: accepted, but not in lists (numbers, old names)
};

std::string lower_case(std::string_view text);

// "a text ("6")", "a list", "nothing": the found value in a message.
std::string describe(const YamlNode& node);

[[noreturn]] void refuse_value(const YamlNode& node, const std::string& key,
                               std::string_view wanted);
[[noreturn]] void refuse_unavailable(const std::string& place, std::string_view what);

bool read_bool(const YamlNode& node, const std::string& key);
std::int64_t read_integer(const YamlNode& node, const std::string& key);
double read_number(const YamlNode& node, const std::string& key);
std::string read_text(const YamlNode& node, const std::string& key);
std::vector<std::string> read_texts(const YamlNode& node, const std::string& key);
std::array<double, 2> read_pair(const YamlNode& node, const std::string& key);
std::array<std::int64_t, 2> read_whole_pair(const YamlNode& node, const std::string& key);
void check_range(const YamlNode& node, const std::string& key, const Range& range, double value);

template <class T>
std::string choices_text(const std::vector<Choice<T>>& choices) {
  std::string text;
  for (const Choice<T>& choice : choices) {
    if (!choice.listed || !choice.available) continue;
    text += (text.empty() ? "" : " | ") + std::string(choice.name);
  }
  return text;
}

template <class T>
T read_choice(const YamlNode& node, const std::string& key, const std::vector<Choice<T>>& choices) {
  if (node.kind == YamlNode::Kind::scalar) {
    const std::string word = lower_case(node.text);
    for (const Choice<T>& choice : choices) {
      if (lower_case(choice.name) != word) continue;
      if (!choice.available) refuse_unavailable(node.where, key + ": " + std::string(choice.name));
      return choice.value;
    }
  }
  fail(ErrorCode::configuration, "{}: {} must be one of {}, got {}{}", node.where, key,
       choices_text(choices), describe(node), other_value(key, node.text));
}

template <class T>
std::string choice_name(const std::vector<Choice<T>>& choices, const T& value) {
  for (const Choice<T>& choice : choices) {
    if (choice.value == value) return std::string(choice.name);
  }
  misuse("a recipe value has no name");
}

}  // namespace tessera::training
