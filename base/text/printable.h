// Text from files and other programs as a terminal may show it.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Control characters, C1 included, and bytes that are no UTF-8 as \xNN; the rest as it is.
std::string printable(std::string_view text);

}  // namespace tessera
