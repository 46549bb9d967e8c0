// CRC-32 as in zip archives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::checkpoint::formats {

// The CRC of the bytes with CRC `before` (0: none) followed by these bytes.
std::uint32_t crc32(std::uint32_t before, const void* data, std::size_t bytes);

}  // namespace tessera::checkpoint::formats
