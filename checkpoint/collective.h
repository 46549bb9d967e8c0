// Steps that ranks take together: each does its part, then all go on or all throw the same error.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/communicator.h"

namespace tessera::checkpoint {

// Runs `work`, which returns a message for the others, and exchanges the outcomes: every rank's
// message in rank order. When it threw on some ranks, every rank throws Error(checkpoint) with the
// first one's number and text. `work` must not call the communicator. Errors of the communicator
// itself pass through.
std::vector<std::string> together(comm::Communicator& communicator, std::string_view doing,
                                  const std::function<std::string()>& work);

}  // namespace tessera::checkpoint
