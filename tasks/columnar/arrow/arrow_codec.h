// The codecs of compressed buffers of Arrow IPC.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::tasks {

enum class ArrowCodec : std::uint8_t { none, lz4_frame, zstd };

// Fills `out`; false if the bytes are damaged or give another number of bytes. The library
// (liblz4.so.1, libzstd.so.1) is loaded at its first use; Error(configuration) if it is not
// installed.
bool decompress(ArrowCodec codec, std::span<const char> bytes, std::span<char> out);

}  // namespace tessera::tasks
