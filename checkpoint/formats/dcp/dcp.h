// PyTorch Distributed Checkpoint: folders of .metadata and *.distcp, and Accelerate's pairs of them
// (pytorch_model_fsdp_0, optimizer_0).
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

const Format& dcp_format();

}  // namespace tessera::checkpoint::formats
