// The outcome of one rank's part of a collective step, for its peers: a number or an Error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tessera::comm {

std::string encode_success(std::uint64_t value);
std::string encode_error(const Error& error);
// Returns the number, or throws the Error.
std::uint64_t decode_result(std::string_view text);

}  // namespace tessera::comm
