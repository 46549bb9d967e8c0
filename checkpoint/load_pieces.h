// One rank's part of a load.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"

namespace tessera::checkpoint {

struct LoadedPieces {
  Scalars scalars;
  Fit fit;
};

// Fills this rank's pieces from a step. Throws Misfit, SystemFailure, or damage.
LoadedPieces load_pieces(const std::string& step_folder, State& state, LoadParts parts,
                         const Selection& selection);
// The same from a plain Hugging Face folder or one .safetensors file, which hold weights alone.
LoadedPieces load_weights(const std::string& source, State& state, LoadParts parts,
                          const Selection& selection);
// Collective, from any of these. Refuses a folder that has the name of a step and no manifest.
LoadedPieces load_together(comm::Communicator& communicator, const std::string& source,
                           State& state, LoadParts parts, const Selection& selection);

}  // namespace tessera::checkpoint
