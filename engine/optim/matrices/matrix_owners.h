// Which rank orthogonalises which matrix, and when. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/storage/element_range.h"

namespace tessera::optim {

// A matrix, and the elements of it that each rank holds (ShardPeers::parts_of).
struct SharedMatrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<ElementRange> parts;

  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
  [[nodiscard]] std::int64_t smaller_side() const { return rows < columns ? rows : columns; }
  // In proportion to the operations of a Newton-Schulz step.
  [[nodiscard]] double cost() const;
  // Every rank has all elements.
  [[nodiscard]] bool is_whole_everywhere() const;
};

struct OwnedMatrix {
  std::size_t matrix = 0;  // its number in the list
  int owner = 0;
};

// Rounds in which a rank owns at most one matrix, the expensive matrices first: those of a round
// cost nearly the same, so the ranks finish it together. The rounds together take at most the
// largest matrix's time more than an even division of the work. Of the ranks that have no matrix in
// the round yet, the one with the largest part of it is the owner.
std::vector<std::vector<OwnedMatrix>> share_matrices(const std::vector<SharedMatrix>& matrices,
                                                     int ranks);

}  // namespace tessera::optim
