// Files of torch.save: state dicts alone, checkpoints with model and optimizer, and the folders
// that Hugging Face (pytorch_model.bin, numbered files with an index) and Accelerate
// (pytorch_model_fsdp.bin, optimizer.bin) make of them.
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

const Format& torch_format();

}  // namespace tessera::checkpoint::formats
