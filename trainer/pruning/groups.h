// The choice within groups of inputs, for matrices that are spread over ranks: N:4 sparsity, and
// the inputs of each output.
#pragma once

#include <span>

#include "trainer/pruning/selection.h"

namespace tessera {

// A group is `size` inputs in a row that one output reads: neighbours of a row of an [out, in]
// matrix (stride 1), or of a column of an [in, out] one (stride `out`). A block is these
// neighbours, or `size` whole rows: elements that contain whole groups alone.
struct GroupLayout {
  std::int64_t stride = 1;
  std::int64_t size = 4;
  [[nodiscard]] std::int64_t block() const { return size * stride; }
};

// Collective. In each group of runs[i] the zeros[i] smallest magnitudes are chosen, of equal ones
// those of the earlier inputs. The sizes of the tensors are multiples of their blocks. `use` as in
// choose_smallest(); layouts[i] is that of runs[i]. Ranks exchange the elements of blocks that the
// ends of their ranges cut, one tensor at a time.
void choose_in_groups(std::span<const PrunedRun> runs, std::span<const GroupLayout> layouts,
                      std::span<const std::int64_t> zeros, const RankExchange& exchange,
                      const std::function<void(std::size_t run, std::vector<std::uint8_t>)>& use);

}  // namespace tessera
