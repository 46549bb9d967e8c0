// The tensors of a Megatron checkpoint, taken apart into those of transformers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/megatron/megatron_model.h"
#include "checkpoint/formats/pieces.h"

namespace tessera::checkpoint::formats {

// A tensor of transformers, in pieces of the files.
struct MegatronPart {
  std::string name;
  PiecedTensor tensor;
};

// True for Megatron's token table and head, whose rows are padded to a multiple.
bool has_vocabulary_rows(std::string_view megatron_name);

// The parts of `whole`, which has Megatron's name and lies in one piece at least for every element:
// layers that are stacked along the first dimension, queries, keys and values of each group of
// heads, gate and up, without the padding of the vocabulary. None: the name is not one of the
// model's. Error(checkpoint) that begins with `what` if the shape does not fit.
std::optional<std::vector<MegatronPart>> split_megatron_tensor(const MegatronModel& model,
                                                               std::string_view name,
                                                               const PiecedTensor& whole,
                                                               const std::string& what);

// The names of transformers that the model has outside of its layers and in layer `layer`.
std::vector<std::string> names_of_model(const MegatronModel& model);
std::vector<std::string> names_of_layer(const MegatronModel& model, std::int64_t layer);

}  // namespace tessera::checkpoint::formats
