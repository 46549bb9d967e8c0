// The free parts of an address range, with best fit and merging of neighbours.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tessera {

// Not thread-safe. Offsets and sizes are in bytes; callers keep sizes to multiples of the alignment
// that they need.
class FreeRanges {
 public:
  explicit FreeRanges(std::size_t bytes);

  // The offset of the smallest free part that holds `bytes`, cut to size. Among equals, the lowest
  // one.
  std::optional<std::size_t> take(std::size_t bytes);
  // Takes the bytes from `offset` on. False, with no effect, if not all of them are free.
  [[nodiscard]] bool take_at(std::size_t offset, std::size_t bytes);
  // Returns a part that came from take() or take_at().
  void give_back(std::size_t offset, std::size_t bytes);

  [[nodiscard]] std::size_t free_bytes() const { return free_bytes_; }
  [[nodiscard]] std::size_t largest() const;
  // Bytes before `end` that are free without a gap.
  [[nodiscard]] std::size_t free_before(std::size_t end) const;

 private:
  using ByOffset = std::map<std::size_t, std::size_t>;  // offset to size

  void insert(std::size_t offset, std::size_t bytes);
  void erase(ByOffset::iterator part);

  ByOffset by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (size, offset)
  std::size_t free_bytes_ = 0;
};

}  // namespace tessera
