// For what computes values without a node of the tape: comparisons, places of extremes, copies.
#pragma once

#include <initializer_list>
#include <string_view>

#include "engine/tensor.h"

namespace tessera::autograd {

// Notes in the first run of a recomputed function that `results` come from `inputs`: a gradient
// that depends on them needs the inputs' values again (engine/recompute_region.h). Undefined
// tensors are allowed. Includes note_read().
void note_values(std::string_view op, std::initializer_list<Tensor> inputs,
                 std::initializer_list<Tensor> results);

}  // namespace tessera::autograd
