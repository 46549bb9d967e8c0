// DeepSpeed's ZeRO checkpoints (stages 1, 2 and 3), as documented by its zero_to_fp32.py; read
// only.
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

const Format& deepspeed_format();

}  // namespace tessera::checkpoint::formats
