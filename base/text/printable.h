// Makes text from files and other programs safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Writes control characters (C1 included), characters that change the direction of a line and bytes
// that are not UTF-8 as \xNN; keeps the rest.
std::string printable(std::string_view text);
// The same, but keeps line breaks and tabs.
std::string printable_lines(std::string_view text);

}  // namespace tessera
