// The free parts of an address range: best fit, neighbours united.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tessera::cuda {

// Not thread-safe. Offsets and sizes are bytes; callers keep sizes to multiples of the alignment
// that they want.
class FreeRanges {
 public:
  explicit FreeRanges(std::size_t bytes);

  // The offset of the smallest free part that holds `bytes`, cut to size; the lowest of equals.
  std::optional<std::size_t> take(std::size_t bytes);
  // A part that take() gave.
  void give_back(std::size_t offset, std::size_t bytes);

  [[nodiscard]] std::size_t free_bytes() const { return free_bytes_; }
  [[nodiscard]] std::size_t largest() const;

 private:
  using ByOffset = std::map<std::size_t, std::size_t>;  // offset to size

  void insert(std::size_t offset, std::size_t bytes);
  void erase(ByOffset::iterator part);

  ByOffset by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (size, offset)
  std::size_t free_bytes_ = 0;
};

}  // namespace tessera::cuda
