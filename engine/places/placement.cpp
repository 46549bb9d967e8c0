// Greedy placement: one block after the other goes into the smallest gap between the blocks that
// are placed already and live at the same time. What is best depends on the order of the blocks.
#include "engine/places/placement.h"

#include <algorithm>
#include <utility>

#include "engine/places/free_ranges.h"

namespace tessera {
namespace {

using Order = std::vector<std::uint32_t>;

// The greedy orders look at many blocks for each block: with more than these they take too long.
constexpr std::size_t most_sorted_blocks = 50'000;
// How often an order is changed and tried again: less often with more blocks.
constexpr std::size_t work_of_an_order = 50'000;
constexpr std::size_t least_tries = 1;
constexpr std::size_t most_tries = 32;

// The blocks that are placed, in the order of their offsets: all of them, and those of each slice
// of time. A block that lives within one slice looks at the blocks of this slice alone.
class PlacedBlocks {
 public:
  explicit PlacedBlocks(const std::vector<BlockLife>& blocks)
      : blocks_(blocks),
        width_(std::max(smallest_slice, blocks.size() / most_slices + 1)),
        slices_(blocks.size() / width_ + 1) {}

  // The smallest gap that holds the block, the lowest of equal ones; else the end of all.
  [[nodiscard]] std::size_t find_place(std::uint32_t block) const {
    const std::uint32_t block_end = blocks_[block].end;
    const std::size_t bytes = blocks_[block].bytes;
    const bool in_one = first_slice(block) == last_slice(block);
    std::size_t end = 0;
    std::size_t best = BlockPlaces::nowhere;
    std::size_t best_gap = BlockPlaces::nowhere;
    for (const Placed& other : in_one ? slices_[first_slice(block)] : all_) {
      if (other.begin >= block_end || other.end <= block) continue;
      const std::size_t gap = other.offset > end ? other.offset - end : 0;
      if (gap >= bytes && gap < best_gap) {
        best = end;
        best_gap = gap;
      }
      end = std::max(end, other.past);
    }
    return best == BlockPlaces::nowhere ? end : best;
  }

  void add(std::uint32_t block, std::size_t offset) {
    const Placed placed{offset, offset + blocks_[block].bytes, block, blocks_[block].end};
    insert(all_, placed);
    for (std::size_t i = first_slice(block); i <= last_slice(block); ++i) {
      insert(slices_[i], placed);
    }
  }

 private:
  static constexpr std::size_t smallest_slice = 32;
  static constexpr std::size_t most_slices = 64;

  struct Placed {
    std::size_t offset, past;  // its first byte, and the first one after it
    std::uint32_t begin, end;  // its life
  };

  static void insert(std::vector<Placed>& list, const Placed& placed) {
    const auto after =
        std::upper_bound(list.begin(), list.end(), placed,
                         [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
    list.insert(after, placed);
  }
  [[nodiscard]] std::size_t first_slice(std::uint32_t block) const { return block / width_; }
  [[nodiscard]] std::size_t last_slice(std::uint32_t block) const {
    return (blocks_[block].end - 1) / width_;
  }

  const std::vector<BlockLife>& blocks_;
  std::size_t width_;  // of a slice
  std::vector<Placed> all_;
  std::vector<std::vector<Placed>> slices_;
};

BlockPlaces place_in_order(const std::vector<BlockLife>& blocks, const Order& order) {
  BlockPlaces placed;
  placed.offsets.assign(blocks.size(), BlockPlaces::nowhere);
  PlacedBlocks index(blocks);
  for (const std::uint32_t block : order) {
    const std::size_t offset = index.find_place(block);
    placed.offsets[block] = offset;
    placed.bytes = std::max(placed.bytes, offset + blocks[block].bytes);
    index.add(block, offset);
  }
  return placed;
}

// One block after the other in the order of their allocation, as a pool does it.
BlockPlaces place_in_time(const std::vector<BlockLife>& blocks, const Order& order) {
  BlockPlaces placed;
  placed.offsets.assign(blocks.size(), BlockPlaces::nowhere);
  FreeRanges ranges(BlockPlaces::nowhere);
  Order by_end = order;
  std::stable_sort(by_end.begin(), by_end.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return blocks[a].end < blocks[b].end; });
  auto ended = by_end.begin();
  for (const std::uint32_t block : order) {
    for (; blocks[*ended].end <= block; ++ended) {
      ranges.give_back(placed.offsets[*ended], blocks[*ended].bytes);
    }
    const std::size_t offset = *ranges.take(blocks[block].bytes);
    placed.offsets[block] = offset;
    placed.bytes = std::max(placed.bytes, offset + blocks[block].bytes);
  }
  return placed;
}

std::size_t largest_sum(const std::vector<BlockLife>& blocks) {
  std::vector<std::size_t> freed(blocks.size() + 1);
  std::size_t live = 0;
  std::size_t largest = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    live -= freed[i];
    if (blocks[i].end == BlockLife::never) continue;
    live += blocks[i].bytes;
    freed[blocks[i].end] += blocks[i].bytes;
    largest = std::max(largest, live);
  }
  return largest;
}

// A range that is this close to the bound is not worth more time.
bool is_near(const BlockPlaces& places) {
  return places.bytes - places.live_bytes <= places.live_bytes / 256;
}

// Places the blocks in this order, and again with the blocks that reached the end of the range
// first, while that may help. Keeps the best places.
void try_order(const std::vector<BlockLife>& blocks, Order order, BlockPlaces& best) {
  const std::size_t most =
      std::clamp(work_of_an_order / (blocks.size() + 1), least_tries, most_tries);
  for (std::size_t tries = 0; tries < most && !is_near(best); ++tries) {
    BlockPlaces placed = place_in_order(blocks, order);
    placed.live_bytes = best.live_bytes;
    const std::size_t end = placed.bytes;
    std::stable_partition(order.begin(), order.end(), [&](std::uint32_t block) {
      return placed.offsets[block] + blocks[block].bytes == end;
    });
    if (end < best.bytes) best = std::move(placed);
  }
}

}  // namespace

BlockPlaces place_blocks(const std::vector<BlockLife>& blocks) {
  Order order;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].end != BlockLife::never) order.push_back(i);
  }
  BlockPlaces best = place_in_time(blocks, order);
  best.live_bytes = largest_sum(blocks);
  if (blocks.size() > most_sorted_blocks) return best;
  const auto life = [&](std::uint32_t i) { return std::size_t{blocks[i].end} - i; };
  const auto size = [&](std::uint32_t i) { return blocks[i].bytes; };
  const auto attempt = [&](const auto& key) {
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const std::pair of_a = key(a), of_b = key(b);
      return of_a != of_b ? of_a > of_b : a < b;
    });
    try_order(blocks, order, best);
  };
  attempt([&](std::uint32_t i) { return std::pair(size(i), life(i)); });
  attempt([&](std::uint32_t i) { return std::pair(life(i), size(i)); });
  attempt([&](std::uint32_t i) { return std::pair(size(i) * life(i), size(i)); });
  return best;
}

}  // namespace tessera
