// The weights of a folder in a model's tensors, sharded or not.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/state/state.h"
#include "comm/communicator.h"
#include "models/model.h"

namespace tessera::models {

// Fills the tensors of a model from a step's folder, or from one that transformers or, for a
// sentence encoder, Sentence Transformers saved. In an encoder's step the head of a loss and a
// pooler may lie beside the encoder; they are passed over. Collective. Missing, unexpected and
// mis-shaped tensors are one Error(checkpoint) that lists them. The folder may have those of
// `passed_over`, or not.
void load_weights(const std::string& folder, comm::Communicator& ranks, const FolderModel& model,
                  std::vector<checkpoint::LogicalTensor> tensors,
                  const std::vector<std::string>& passed_over = {});

}  // namespace tessera::models
