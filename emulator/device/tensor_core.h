// The tensor core of a warp. kernels/cuda/device/gpu.h describes the functions.
#pragma once

#include <cstdint>

#include "emulator/scheduler/thread_operations.h"
#include "emulator/scheduler/warp_operations.h"

namespace tessera::emulator {

inline void multiply(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     const float (&c)[4], void (*product)(MatrixProduct&, const Operation&),
                     const Operation& operation) {
  MatrixProduct part{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}, {}};
  product(part, operation);
  for (int i = 0; i < 4; ++i) d[i] = part.d[i];
}

// Each lane reads the row that it names.
inline void load_matrices(std::uint32_t (&fragment)[4], const void* row, bool transposed,
                          const Operation& operation) {
  MatrixLoad part{};
  check_shared(row, sizeof(part.row), sizeof(part.row), operation);
  const auto* elements = static_cast<const std::uint16_t*>(row);
  for (int i = 0; i < 8; ++i) part.row[i] = elements[i];
  distribute_matrices(part, transposed, operation);
  for (int i = 0; i < 4; ++i) fragment[i] = part.fragment[i];
}

}  // namespace tessera::emulator

namespace tessera::kernels::cuda {

inline void mma_bfloat16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                         const float (&c)[4], emulator::Place place = emulator::Place::here()) {
  emulator::multiply(d, a, b, c, emulator::multiply_bfloat16, {"mma_bfloat16", place});
}
inline void mma_float16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                        const float (&c)[4], emulator::Place place = emulator::Place::here()) {
  emulator::multiply(d, a, b, c, emulator::multiply_float16, {"mma_float16", place});
}

inline void load_matrix_x4(std::uint32_t (&fragment)[4], const void* row,
                           emulator::Place place = emulator::Place::here()) {
  emulator::load_matrices(fragment, row, false, {"load_matrix_x4", place});
}
inline void load_matrix_x4_transposed(std::uint32_t (&fragment)[4], const void* row,
                                      emulator::Place place = emulator::Place::here()) {
  emulator::load_matrices(fragment, row, true, {"load_matrix_x4_transposed", place});
}

}  // namespace tessera::kernels::cuda
