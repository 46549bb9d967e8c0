// A checkpoint whose AdamW moments are 8-bit codes instead of numbers, or numbers instead of codes.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

enum class Moments : std::uint8_t { fp32, eight_bit };

// eight_bit: the moments of parameters with at least 4096 elements (AdamW8BitOptions' default)
// become codes and scales (base/eight_bit.h); fp32: codes and scales become numbers, exactly.
// All else stays. Error(checkpoint) if there are no such moments.
std::unique_ptr<formats::Source> open_with_moments(std::unique_ptr<formats::Source> source,
                                                   Moments wanted);

}  // namespace tessera::checkpoint
