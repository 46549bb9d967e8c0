// A range of neighbouring elements.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

// Elements [first, first + count).
struct ElementRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t end() const { return first + count; }
};

inline ElementRange intersect(ElementRange a, ElementRange b) {
  const std::int64_t first = std::max(a.first, b.first);
  return {first, std::max<std::int64_t>(0, std::min(a.end(), b.end()) - first)};
}

}  // namespace tessera
