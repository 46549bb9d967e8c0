// N:4 sparsity of matrices that are spread over ranks.
#pragma once

#include <span>

#include "trainer/pruning/selection.h"

namespace tessera {

// A group is four inputs in a row that one output reads: four neighbours of a row of an [out, in]
// matrix (stride 1), or of a column of an [in, out] one (stride `out`). A block is the four
// neighbours, or four whole rows: elements that contain whole groups alone.
struct GroupLayout {
  std::int64_t stride = 1;
  [[nodiscard]] std::int64_t block() const { return 4 * stride; }
};

// Collective. In each group the `zeros` smallest magnitudes are chosen, of equal ones those of the
// earlier inputs. The sizes of the tensors are multiples of their blocks. `use` as in
// choose_smallest(); layouts[i] is that of runs[i].
void choose_in_groups(std::span<const PrunedRun> runs, std::span<const GroupLayout> layouts,
                      int zeros, const RankExchange& exchange,
                      const std::function<void(std::size_t run, std::vector<std::uint8_t>)>& use);

}  // namespace tessera
