// A model with fewer attention heads and feed-forward columns: the others' weights are left out
// while they are read.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/formats/format.h"
#include "checkpoint/narrow/layer_tensors.h"

namespace tessera::checkpoint {

// Each layer keeps the heads and columns whose weights have the largest sums of squares: of a head,
// its rows of the projections of queries, keys and values and its columns of the output's, where
// heads that share a key and a value head count and go together; of a feed-forward column, its rows
// of the projections up (and of the gate) and its column of the projection down. Biases do not
// count. Of equal sums the first is kept. Those that are kept stay in their order, and what is kept
// has the bits of the original.
//
// Has the model's tensors alone, and the texts of `from` with a config.json for the smaller model.
// `config` is the text of the model's own. Reads the divided weights once, here, in blocks. Throws
// Error(configuration) as plan_narrowing() does, and Error(checkpoint) for a tensor that is missing
// or has another shape than config.json says. Memory beyond the source's: 8 bytes a unit, a row of
// a tensor and two blocks of 1 MiB.
std::unique_ptr<formats::Source> open_narrowed(std::unique_ptr<formats::Source> from,
                                               const std::string& config,
                                               const NarrowOptions& options);

}  // namespace tessera::checkpoint
