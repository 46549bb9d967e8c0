// Rotary position tables of Llama: frequencies, their scaling, and the cosines and sines of
// positions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

// fp32 tables of [positions, head_dim / 2].
struct RopeTables {
  Tensor cosine;
  Tensor sine;
};

// The angle of pair i between one position and the next.
std::vector<float> rope_frequencies(std::int64_t head_dim, double theta,
                                    const RopeScaling& scaling);

// Rounds where transformers rounds (frequencies and angles to fp32), so that far positions agree as
// well.
RopeTables make_rope_tables(const std::vector<float>& frequencies, std::int64_t positions,
                            Device device = Device::cpu());

}  // namespace tessera::models
