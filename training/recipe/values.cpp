// Scalars without locale and without guessing: a text that is not completely a value of the wanted
// type is refused.
#include "training/recipe/values.h"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>

namespace tessera::training {
namespace {

// Exact whole numbers only. 1e6 is one, because people write large counts in this way.
std::optional<std::int64_t> whole_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const char* end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && stop == end) return value;
  if (text.find_first_of("eE") == std::string_view::npos) return std::nullopt;
  double real = 0;
  const auto [real_stop, real_error] = std::from_chars(text.data(), end, real);
  constexpr double exactly_representable = 9007199254740992.0;  // 2^53
  if (real_error != std::errc{} || real_stop != end || real != std::floor(real))
    return std::nullopt;
  if (std::abs(real) > exactly_representable) return std::nullopt;
  return static_cast<std::int64_t>(real);
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string describe(const YamlNode& node) {
  constexpr std::size_t longest = 60;
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing";
    case YamlNode::Kind::sequence:
      return "a list";
    case YamlNode::Kind::mapping:
      return "a group of keys";
    case YamlNode::Kind::scalar:
      break;
  }
  std::string text = node.text;
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return node.quoted ? fmt::format("the text \"{}\"", text) : text;
}

void refuse_value(const YamlNode& node, const std::string& key, std::string_view wanted) {
  fail(ErrorCode::configuration, "{}: {} must be {}, got {}", node.where, key, wanted,
       describe(node));
}

void refuse_unavailable(const std::string& place, std::string_view what) {
  fail(ErrorCode::configuration, "{}: {} is not available in this version; leave it out", place,
       what);
}

bool read_bool(const YamlNode& node, const std::string& key) {
  if (node.kind == YamlNode::Kind::scalar) {
    const std::string word = lower_case(node.text);
    if (word == "true" || word == "yes" || word == "on") return true;
    if (word == "false" || word == "no" || word == "off") return false;
  }
  refuse_value(node, key, "true or false");
}

std::int64_t read_integer(const YamlNode& node, const std::string& key) {
  if (node.kind == YamlNode::Kind::scalar && !node.quoted) {
    if (const auto value = whole_number(node.text)) return *value;
    const bool digits = node.text.find_first_not_of("+-0123456789") == std::string::npos;
    if (digits && node.text.size() > 18) {
      refuse_value(node, key, "a whole number that fits 64 bits");
    }
  }
  refuse_value(node, key, "a whole number");
}

double read_number(const YamlNode& node, const std::string& key) {
  if (node.kind == YamlNode::Kind::scalar && !node.quoted) {
    std::string_view text = node.text;
    if (text.starts_with('+')) text.remove_prefix(1);
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc{} && stop == end && std::isfinite(value)) return value;
  }
  refuse_value(node, key, "a finite number");
}

std::string read_text(const YamlNode& node, const std::string& key) {
  if (node.kind == YamlNode::Kind::scalar && !node.text.empty()) return node.text;
  refuse_value(node, key, "a text");
}

std::vector<std::string> read_texts(const YamlNode& node, const std::string& key) {
  std::vector<std::string> texts;
  const auto append = [&](std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) refuse_value(node, key, "a list of names, none empty");
    texts.emplace_back(text.substr(first, text.find_last_not_of(" \t") - first + 1));
  };
  if (node.kind == YamlNode::Kind::sequence) {
    for (const YamlNode& item : node.items) append(read_text(item, key));
    return texts;
  }
  std::string_view rest = node.text;
  if (node.kind != YamlNode::Kind::scalar) refuse_value(node, key, "a name or a list of names");
  for (std::size_t comma = rest.find(','); comma != std::string_view::npos;
       comma = rest.find(',')) {
    append(rest.substr(0, comma));
    rest.remove_prefix(comma + 1);
  }
  append(rest);
  return texts;
}

std::array<double, 2> read_pair(const YamlNode& node, const std::string& key) {
  if (node.kind != YamlNode::Kind::sequence || node.items.size() != 2) {
    refuse_value(node, key, "a list of two numbers");
  }
  return {read_number(node.items[0], key), read_number(node.items[1], key)};
}

std::array<std::int64_t, 2> read_whole_pair(const YamlNode& node, const std::string& key) {
  if (node.kind != YamlNode::Kind::sequence || node.items.size() != 2) {
    refuse_value(node, key, "a list of two whole numbers");
  }
  return {read_integer(node.items[0], key), read_integer(node.items[1], key)};
}

void check_range(const YamlNode& node, const std::string& key, const Range& range, double value) {
  if (!range.holds(value)) refuse_value(node, key, range.text());
}

}  // namespace tessera::training
