// The bytes of a connection to the control plane.
#pragma once

#include <string_view>

namespace tessera::fuzz {

// Gives the bytes to a door that requires a key and must not admit them, as frames to all decoders,
// and as a change to a sealed connection, which must notice it.
void run_control(std::string_view bytes);

}  // namespace tessera::fuzz
