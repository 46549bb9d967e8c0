// Built level by level from the sorted keys.
#include "tokenizers/text/trie.h"

#include <cstddef>

#include "base/error.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {

Trie::Trie(std::vector<std::pair<std::string, std::int32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // The sorted keys below a node, and the length of the node's prefix.
  struct Range {
    std::size_t begin;
    std::size_t end;
    std::size_t depth;
  };
  std::vector<Range> ranges = {{0, entries.size(), 0}};
  nodes_.emplace_back();
  labels_.push_back(0);
  for (std::size_t node = 0; node < ranges.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    for (; begin < end && entries[begin].first.size() == depth; ++begin) {
      nodes_[node].value = entries[begin].second;
    }
    nodes_[node].first_child = static_cast<std::uint32_t>(ranges.size());
    while (begin < end) {
      const char byte = entries[begin].first[depth];
      std::size_t next = begin + 1;
      while (next < end && entries[next].first[depth] == byte) ++next;
      ranges.push_back({begin, next, depth + 1});
      nodes_.emplace_back();
      labels_.push_back(static_cast<unsigned char>(byte));
      nodes_[node].children += 1;
      begin = next;
    }
  }
  first_level_.fill(no_node);
  for (std::uint32_t i = 0; i < nodes_[root].children; ++i) {
    const std::uint32_t node = nodes_[root].first_child + i;
    first_level_[labels_[node]] = node;
  }
}

void check_walk(std::string_view token, const std::string& source) {
  TESSERA_CHECK(token.size() <= longest_walk, ErrorCode::data,
                "{}: the token that begins with '{}' has {} bytes, and texts are not searched for "
                "tokens of more than {}; remove it",
                source, shown(token), token.size(), longest_walk);
}

}  // namespace tessera::tokenizers
