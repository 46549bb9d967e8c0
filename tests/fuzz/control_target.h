// The bytes of a connection to the control plane.
#pragma once

#include <string_view>

namespace tessera::fuzz {

// Gives the bytes to a door that requires a key and must not admit them, and as frames to all
// decoders.
void run_control(std::string_view bytes);

}  // namespace tessera::fuzz
