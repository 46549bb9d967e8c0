// The end of a pickle that is followed by other bytes.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

// The number of bytes of the pickle that begins at byte `begin` of a file of `file_bytes`. Reads
// the file in small pieces, skips the arguments of the opcodes and builds nothing. Throws
// Error(checkpoint) that begins with `source` if the pickle has no end in the file, is longer than
// pickle_bytes_limit, or has an opcode that no pickle has.
std::uint64_t pickle_length(const ReadBytes& read, std::uint64_t begin, std::uint64_t file_bytes,
                            const std::string& source);

}  // namespace tessera::checkpoint::formats
