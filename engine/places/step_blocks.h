// The blocks of one step in the order of their allocation, as they are recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/places/placement.h"

namespace tessera {

// Not thread-safe.
class StepBlocks {
 public:
  // Forgets all blocks. Keeps the memory of the list.
  void clear();
  // Returns the position of the block.
  std::uint32_t add(std::size_t bytes);
  // The block at this position was freed now.
  void free(std::uint32_t position);

  [[nodiscard]] const std::vector<BlockLife>& blocks() const { return blocks_; }
  [[nodiscard]] bool has_sizes_of(const StepBlocks& other) const;
  // Lets each block live as long as the longer of the two at its position. Requires equal sizes.
  void extend_lives(const StepBlocks& other);
  // Total bytes of the blocks that outlive the step.
  [[nodiscard]] std::size_t lasting_bytes() const;

 private:
  std::vector<BlockLife> blocks_;
};

}  // namespace tessera
