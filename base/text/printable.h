// Makes text from files and other programs safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Writes control characters (C1 included) and bytes that are not UTF-8 as \xNN; keeps the rest.
std::string printable(std::string_view text);

}  // namespace tessera
