// Bytes of a checkpoint that are read into memory when it is opened.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::checkpoint {

// The bytes of the headers, indexes, manifests and pickles of a file, or of a folder and the files
// in it, by their stated sizes. Reads only small zip directories. A damaged file counts as zero;
// opening it reports the damage.
std::uint64_t header_bytes(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
