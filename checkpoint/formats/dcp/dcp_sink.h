// Writing the folders of PyTorch Distributed Checkpoint.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

// One file for each rank, cut along the first dimension as FSDP2 does, with "model." and
// "optimizer." before the names, as Accelerate does.
std::unique_ptr<Sink> create_dcp(const std::filesystem::path& path, const Contents& contents,
                                 const WriteOptions& options);

}  // namespace tessera::checkpoint::formats
