// A small YAML document as a tree that knows its lines. Its size, depth and number of nodes are
// limited, and the parts of YAML that a configuration does not need are refused (aliases, anchors,
// tags, several documents).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::training {

struct YamlNode {
  enum class Kind : std::uint8_t { null, scalar, sequence, mapping };
  Kind kind = Kind::null;
  std::string where;            // "recipe.yaml:12"
  std::string text;             // of a scalar
  bool quoted = false;          // a scalar in quotes is always a text
  std::vector<YamlNode> items;  // of a sequence, or the values of a mapping
  std::vector<YamlNode> keys;   // of a mapping: scalars, all different; keys[i] belongs to items[i]
};

// Throws Error(configuration) that begins with "source:line:". If `numbered` is false, the place is
// `source` alone.
YamlNode parse_yaml(std::string_view text, const std::string& source, bool numbered = true);

}  // namespace tessera::training
