// One rank's part of a distributed tensor (torch.distributed.tensor.DTensor), read as data. FSDP's
// sharded state dicts are made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/formats/cover.h"
#include "checkpoint/formats/torch/torch_archive.h"

namespace tessera::checkpoint::formats {

struct DTensorPart {
  std::vector<std::int64_t> shape;  // of the whole tensor
  Box box;                          // the elements that the rank has
  TorchTensor local;                // of the shape of the box
};

// The globals of torch_rules, and those of DTensors and their meshes.
extern const PickleRules dtensor_rules;

// None if the value is not a DTensor. The box follows from the placements (Shard, Replicate), the
// sizes of the device mesh and the rank's place in it, which the file has, as torch.chunk cuts a
// dimension. Error(checkpoint) for other placements (Partial, _StridedShard, two shards of one
// dimension), a mesh of an unknown form, and a local tensor of another shape.
std::optional<DTensorPart> read_dtensor(const TorchArchive& archive, const PickleValue& value);

}  // namespace tessera::checkpoint::formats
