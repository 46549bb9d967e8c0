// Samples of unequal lengths, divided over ranks so that all compute about as long. Which samples a
// batch has does not change, nor does a loss that weighs each rank's part (Task::weighs_batches()).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera::tasks {

// The cost of a row of so many places. It grows with the length.
using RowCost = std::function<double(std::int64_t length)>;

// The places in `lengths` of the samples of each of `parts` ranks, ascending. A rank pads its
// samples to the longest, so samples of similar lengths go together, the longest to the first rank.
// The cost of the most expensive rank, its samples times the cost of its longest, is the smallest
// possible for which no rank has more than `most_places`, padding included, and each has at least
// one sample. There are at least as many lengths as parts, and equal numbers of samples fit into
// `most_places`.
std::vector<std::vector<std::int64_t>> deal_by_cost(std::span<const std::int64_t> lengths,
                                                    std::int64_t parts, std::int64_t most_places,
                                                    const RowCost& cost);

}  // namespace tessera::tasks
