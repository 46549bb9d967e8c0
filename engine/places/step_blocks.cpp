// A list of sizes and lifetimes.
#include "engine/places/step_blocks.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace tessera {

void StepBlocks::clear() {
  blocks_.clear();
}

std::uint32_t StepBlocks::add(std::size_t bytes) {
  TESSERA_REQUIRE(blocks_.size() < BlockLife::never, "a step of {} allocations", blocks_.size());
  blocks_.push_back({bytes, BlockLife::never});
  return static_cast<std::uint32_t>(blocks_.size() - 1);
}

void StepBlocks::free(std::uint32_t position) {
  blocks_[position].end = static_cast<std::uint32_t>(blocks_.size());
}

bool StepBlocks::has_sizes_of(const StepBlocks& other) const {
  return std::equal(blocks_.begin(), blocks_.end(), other.blocks_.begin(), other.blocks_.end(),
                    [](const BlockLife& a, const BlockLife& b) { return a.bytes == b.bytes; });
}

void StepBlocks::extend_lives(const StepBlocks& other) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].end = std::max(blocks_[i].end, other.blocks_[i].end);
  }
}

std::size_t StepBlocks::lasting_bytes() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), std::size_t{0},
                         [](std::size_t sum, const BlockLife& block) {
                           return sum + (block.end == BlockLife::never ? block.bytes : 0);
                         });
}

}  // namespace tessera
