// From a YAML value to a typed one, with messages that say what was wanted and what was found.
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

#include "cli/yaml_tree.h"
#include "kernels/base/error.h"

namespace tessera::cli {

// What a key's value may be beyond its type.
struct Range {
  std::optional<double> low;
  std::optional<double> high;
  bool low_excluded = false;
  bool high_excluded = false;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool holds(double value) const;
};

inline Range at_least(double low) {
  return {low, {}, false, false};
}
inline Range above(double low) {
  return {low, {}, true, false};
}
inline Range from_up_to(double low, double high) {
  return {low, high, false, true};
}  // [low, high)

// One spelling of an enumerated value. Further spellings of the same value follow it; the first one
// is written.
template <class T>
struct Choice {
  std::string_view name;
  T value;
  bool available = true;
  bool listed = true;  // false: accepted, but not in lists (numbers, old names)
};

std::string lower_case(std::string_view text);

// "a text ("6")", "a list", "nothing": what a message says was found.
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
  refuse_value(node, key, "one of " + choices_text(choices));
}

template <class T>
std::string choice_name(const std::vector<Choice<T>>& choices, const T& value) {
  for (const Choice<T>& choice : choices) {
    if (choice.value == value) return std::string(choice.name);
  }
  misuse("a recipe value has no name");
}

}  // namespace tessera::cli
