// Sums over the batches of an evaluation, shared by the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sharding/context/context.h"

namespace tessera::tasks {

// Collective. The sums of what `of_batch` gives for the samples 0 to count - 1 in batches: some
// numbers, as many for each batch, such as a loss times its weight and the weight. The batches are
// the same for every world size and are summed in their order, so the bits are the same. `repeats`
// is true for a batch of another rank, which this one computes so that the others do not wait.
// `sharers` ranks in a row compute a batch together: each gives the numbers of its part.
using BatchNumbers =
    std::function<std::vector<double>(std::span<const std::int64_t> samples, bool repeats)>;
std::vector<double> sum_over_batches(std::int64_t count, std::int64_t batch_size,
                                     const Context& context, const BatchNumbers& of_batch,
                                     int sharers = 1);

}  // namespace tessera::tasks
