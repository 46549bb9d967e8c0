// The exchange between the lanes of a warp, as bits. It belongs to the scheduler and not to the
// device headers, because the last lane to come reads the other lanes' stacks, which the thread
// sanitizer must not see.
#pragma once

#include <cstdint>

#include "emulator/scheduler/place.h"

namespace tessera::emulator {

// The bits of lane `source`. Fails when the mask does not name that lane.
std::uint64_t shuffle_bits(unsigned mask, std::uint64_t bits, int source,
                           const Operation& operation);

// The lanes of the mask that came with a true predicate.
unsigned ballot(unsigned mask, bool predicate, const Operation& operation);

// The lanes of the mask that have the same bits.
unsigned match_bits(unsigned mask, std::uint64_t bits, const Operation& operation);

// ---- tensor core: whole warps

// One lane's part of d = a * b + c for m16n8k16.
struct MatrixProduct {
  std::uint32_t a[4];
  std::uint32_t b[2];
  float c[4];
  float d[4];
};
void multiply_bfloat16(MatrixProduct& part, const Operation& operation);
void multiply_float16(MatrixProduct& part, const Operation& operation);

// One lane's part of ldmatrix: it supplies a row of eight elements and gets its part of four
// matrices.
struct MatrixLoad {
  std::uint16_t row[8];
  std::uint32_t fragment[4];
};
void distribute_matrices(MatrixLoad& part, bool transposed, const Operation& operation);

}  // namespace tessera::emulator
