// One rank's part of a load.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"

namespace tessera::checkpoint {

// Fills this rank's pieces and returns the scalars. Misfit, SystemFailure, or damage.
Scalars load_pieces(const std::string& step_folder, State& state, LoadParts parts);

}  // namespace tessera::checkpoint
