// Two indices over the free parts: by offset to find neighbours, by size to find a fit.
#include "engine/places/free_ranges.h"

#include <iterator>

#include "base/error.h"

namespace tessera {

FreeRanges::FreeRanges(std::size_t bytes) {
  if (bytes > 0) insert(0, bytes);
}

void FreeRanges::insert(std::size_t offset, std::size_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void FreeRanges::erase(ByOffset::iterator part) {
  by_size_.erase({part->second, part->first});
  free_bytes_ -= part->second;
  by_offset_.erase(part);
}

std::optional<std::size_t> FreeRanges::take(std::size_t bytes) {
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *fit;
  erase(by_offset_.find(offset));
  if (size > bytes) insert(offset + bytes, size - bytes);
  return offset;
}

bool FreeRanges::take_at(std::size_t offset, std::size_t bytes) {
  const auto after = by_offset_.upper_bound(offset);
  if (after == by_offset_.begin()) return false;
  const auto part = std::prev(after);
  const auto [first, size] = *part;
  if (first + size < offset + bytes) return false;
  erase(part);
  if (first < offset) insert(first, offset - first);
  if (offset + bytes < first + size) insert(offset + bytes, first + size - offset - bytes);
  return true;
}

void FreeRanges::give_back(std::size_t offset, std::size_t bytes) {
  auto next = by_offset_.lower_bound(offset);
  TESSERA_REQUIRE(next == by_offset_.end() || offset + bytes <= next->first,
                  "{} bytes at {} were free already", bytes, offset);
  if (next != by_offset_.end() && offset + bytes == next->first) {
    bytes += next->second;
    const auto united = next++;
    erase(united);
  }
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    TESSERA_REQUIRE(previous->first + previous->second <= offset,
                    "{} bytes at {} were free already", bytes, offset);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase(previous);
    }
  }
  insert(offset, bytes);
}

std::size_t FreeRanges::free_before(std::size_t end) const {
  const auto after = by_offset_.lower_bound(end);
  if (after == by_offset_.begin()) return 0;
  const auto [first, size] = *std::prev(after);
  return first + size < end ? 0 : end - first;
}

std::size_t FreeRanges::largest() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

}  // namespace tessera
