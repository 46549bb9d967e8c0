// Bytes as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::cli {

// "80GB" is 80e9, "80GiB" 80 x 2^30; k, M, G, T and P, a space before them or none, "B" alone or
// nothing for bytes. None for anything else, and for 0.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// What an option says of a memory's size. Error(usage) for what is no number of bytes, and for a
// number below a MiB without a unit: "80" is likely to mean 80GB.
std::uint64_t read_memory_size(const std::string& option, const std::string& text);

// "1.23 GiB", "12.3 GiB", "123 MiB", "512 B".
std::string bytes_text(std::uint64_t bytes);

}  // namespace tessera::cli
