// The order in which blocks process the tiles of a matrix product's result.
#pragma once

#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

struct TilePosition {
  int row, column;  // in tiles
};

// Blocks that run at the same time have neighbouring numbers. With numbering down columns of
// `group` tiles, they share operands that are still in the L2 cache.
__device__ __forceinline__ TilePosition tile_of_block(int block, int row_tiles, int column_tiles) {
  constexpr int group = 8;
  const int tiles_of_group = group * column_tiles;
  const int first_row = block / tiles_of_group * group;
  const int rows = row_tiles - first_row < group ? row_tiles - first_row : group;
  const int within = block % tiles_of_group;
  return {first_row + within % rows, within / rows};
}

}  // namespace tessera::kernels::cuda
