// A vocabulary by the bytes of its tokens: exact matches, and all tokens that a text begins with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::tokenizers {

// Built once, then read by any number of threads. The children of a node are adjacent, sorted by
// byte.
class Trie {
 public:
  static constexpr std::int32_t none = -1;
  static constexpr std::uint32_t root = 0;

  Trie() : Trie(std::vector<std::pair<std::string, std::int32_t>>{}) {}
  // If a key occurs twice, the last value counts.
  explicit Trie(std::vector<std::pair<std::string, std::int32_t>> entries);

  // The child by a byte; no_node if the token does not exist.
  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const {
    if (node == root) return first_level_[byte];
    const Node& parent = nodes_[node];
    const unsigned char* const begin = labels_.data() + parent.first_child;
    const unsigned char* const end = begin + parent.children;
    const unsigned char* at = begin;
    if (parent.children > 12) {
      at = std::lower_bound(begin, end, byte);
    } else {
      while (at != end && *at < byte) ++at;
    }
    if (at == end || *at != byte) return no_node;
    return parent.first_child + static_cast<std::uint32_t>(at - begin);
  }
  [[nodiscard]] std::int32_t value(std::uint32_t node) const { return nodes_[node].value; }
  static constexpr std::uint32_t no_node = 0xffffffffu;

  // The node of a prefix, from `node` on.
  [[nodiscard]] std::uint32_t walk(std::string_view text, std::uint32_t node = root) const {
    for (const char byte : text) {
      if (node == no_node) break;
      node = child(node, static_cast<unsigned char>(byte));
    }
    return node;
  }
  [[nodiscard]] std::int32_t find(std::string_view key) const {
    const std::uint32_t node = walk(key);
    return node == no_node ? none : value(node);
  }

 private:
  struct Node {
    std::uint32_t first_child = 0;
    std::uint32_t children = 0;
    std::int32_t value = none;
  };
  std::vector<Node> nodes_;
  std::vector<unsigned char> labels_;  // of nodes_, by index
  std::array<std::uint32_t, 256> first_level_{};
};

// A model that tries all tokens at each byte of a text takes the product of both lengths. Bytes of
// the longest token that it accepts; real vocabularies stay below 100.
inline constexpr std::size_t longest_walk = 512;
// Throws Error(data) for a longer one.
void check_walk(std::string_view token, const std::string& source);

}  // namespace tessera::tokenizers
