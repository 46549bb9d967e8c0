// What a connection of the control plane may carry.
#pragma once

#include <string_view>

namespace tessera::fuzz {

// Gives the bytes to a door that asks for a key, where they must not come in, and as frames to all
// decoders.
void run_control(std::string_view bytes);

}  // namespace tessera::fuzz
