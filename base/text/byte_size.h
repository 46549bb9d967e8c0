// Byte sizes as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// "80GB" is 80e9, "80GiB" is 80 x 2^30. The prefix is k, M, G, T or P, with or without a space
// before it; "B" alone or no unit means bytes. Empty for anything else, and for 0.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// Parses an option that gives a memory size. Throws Error(usage) if the text is not a number of
// bytes, or is a number below 1 MiB without a unit: "80" probably means 80GB.
std::uint64_t read_memory_size(const std::string& option, const std::string& text);

// Formats as "1.23 GiB", "12.3 GiB", "123 MiB" or "512 B".
std::string bytes_text(std::uint64_t bytes);

}  // namespace tessera
