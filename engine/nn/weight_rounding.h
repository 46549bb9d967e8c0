// Training with the rounded weights of a quantised file: products read each weight as GGUF's blocks
// hold it, and gradients reach the weight itself ("straight through", Bengio et al. 2013). Call it
// before the module is sharded:
//
//   ts::round_weights(net, ts::WeightRounding::q4_0, {"wpe"});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"

namespace tessera {

// The blocks: 32 neighbouring inputs of one output share a float16 scale and have 8 or 4 bits each.
enum class WeightRounding : std::uint8_t { none, q8_0, q4_0 };

inline constexpr std::int64_t rounded_together = 32;

// x as blocks of its last dimension hold it, in x's dtype: the values that a GGUF file gives back,
// to the bit for float32. The gradient is that of the result. The last dimension is a multiple of
// 32 (logic_error). A block with a value that is not finite, or whose scale float16 cannot hold, is
// not finite. It takes several passes over x, in float32; a forward that backward recomputes keeps
// none of their results.
Tensor round_to_blocks(const Tensor& x, WeightRounding rounding);

// From now on the linear layers and embeddings of the module read rounded weights. Left as they
// are: layers whose last name is in `except`, and layers whose inputs are not a multiple of 32,
// which become float16 in GGUF files. Returns the names of the layers that are rounded;
// Error(configuration) if there are none.
std::vector<std::string> round_weights(nn::Module& module, WeightRounding rounding,
                                       const std::vector<std::string>& except = {});

}  // namespace tessera
