// How much of a checkpoint is read into memory when it is opened.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::checkpoint {

// The bytes of the headers, indexes, manifests and pickles of a file, or of a folder and those in
// it, by what their sizes say: none of them is read. What is damaged counts nothing; who opens it
// says so.
std::uint64_t header_bytes(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
