// Ranges cut into pieces, the same on both ends of a connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace tessera::comm {

struct Piece {
  std::int64_t first = 0;  // in the buffer
  std::int64_t count = 0;
  std::size_t range = 0;    // in which of the ranges...
  std::int64_t offset = 0;  // ... and where in it
};

// `Ranges` is a vector of a type with `first` and `count`. A piece has at most `largest` elements;
// `grid` divides `largest`. A piece begins at a multiple of `grid` in the buffer, or ends at the
// next multiple.
template <class Ranges>
class Pieces {
 public:
  Pieces(const Ranges& ranges, std::int64_t largest, std::int64_t grid = 1)
      : ranges_(&ranges), largest_(largest), grid_(grid) {}

  std::optional<Piece> next() {
    while (range_ < ranges_->size() && offset_ == (*ranges_)[range_].count) {
      ++range_;
      offset_ = 0;
    }
    if (range_ == ranges_->size()) return std::nullopt;
    const auto& range = (*ranges_)[range_];
    const std::int64_t first = range.first + offset_;
    const std::int64_t most = first % grid_ == 0 ? largest_ : grid_ - first % grid_;
    const Piece piece{first, std::min(most, range.count - offset_), range_, offset_};
    offset_ += piece.count;
    return piece;
  }

 private:
  const Ranges* ranges_;
  std::int64_t largest_, grid_;
  std::size_t range_ = 0;
  std::int64_t offset_ = 0;
};

}  // namespace tessera::comm
