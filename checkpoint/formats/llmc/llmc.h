// llm.c's model files: GPT-2's weights in fp32 or bf16, one file.
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

const Format& llmc_format();

}  // namespace tessera::checkpoint::formats
