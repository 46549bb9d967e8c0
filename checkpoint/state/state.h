// The contents of a checkpoint: logical tensors and scalars. Both are independent of world size and
// strategy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/quantized.h"
#include "checkpoint/state/scalars.h"
#include "engine/device/device.h"
#include "engine/storage/file_place.h"

namespace tessera::checkpoint {

// A contiguous run of elements of a tensor in row-major order, in this rank's memory of `device`. A
// save or load uses the calling thread's current queue there: it saves the results of earlier work,
// and later work sees the loaded values.
struct Piece {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::byte* data = nullptr;
  Device device = Device::cpu();
  FilePlace file = {};  // instead of `data`: offloaded state
};

// A floating matrix of a file that a load quantises (base/quantized.h).
struct QuantizedFrom {
  QuantizedFormat format = QuantizedFormat::nf4;
  std::vector<std::int64_t> shape;
};

// One logical tensor as one rank sees it. The pieces of all ranks cover the tensor (saving: each
// element exactly once; loading: what each rank wants, overlaps allowed). Memory holds `dtype`; a
// file may hold another floating dtype, converted during the transfer.
struct LogicalTensor {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  std::vector<Piece> pieces;
  bool optional = false;  // loading: it may be missing in the checkpoint
  // Loading: a uint8 tensor takes the codes of the matrix, a floating one the numbers of the codes.
  std::optional<QuantizedFrom> quantized = {};
};

// Everything that a training run needs to continue.
struct State {
  std::vector<LogicalTensor> model;  // Hugging Face names
  std::vector<LogicalTensor>
      optimizer;    // "<parameter name>.exp_avg", ".exp_avg_sq", ".momentum"; fp32
  Scalars scalars;  // step, data position, rng, scheduler, scaler: the same on every rank
};

}  // namespace tessera::checkpoint
