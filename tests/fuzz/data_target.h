// The bytes of a connection to a rank's port for data.
#pragma once

#include <string_view>

namespace tessera::fuzz {

// Gives the bytes to a rank as a call, which it must not take, as frames of a protected connection,
// which must notice a change, and as a contact.
void run_data(std::string_view bytes);

}  // namespace tessera::fuzz
