// Writing step folders from a stream of tensors: the files, checksums and manifest of a save.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

std::unique_ptr<Sink> create_full_step(const std::filesystem::path& folder,
                                       const Contents& contents, const WriteOptions& options);
std::unique_ptr<Sink> create_sharded_step(const std::filesystem::path& folder,
                                          const Contents& contents, const WriteOptions& options);

}  // namespace tessera::checkpoint::formats
