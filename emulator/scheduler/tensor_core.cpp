// mma.sync.m16n8k16 and ldmatrix. The last lane of a warp computes them for the whole warp. The
// layout of fragments follows the PTX manual (9.7.14.5.8 and 9.7.14.5.15).
#include <cuda_fp16.h>

#include <bit>

#include "emulator/scheduler/thread_operations.h"
#include "emulator/scheduler/warp_operations.h"

namespace tessera::emulator {
namespace {

constexpr unsigned whole_warp = 0xffffffffu;
constexpr int rows = 16, columns = 8, depth = 16;

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
float from_float16(std::uint16_t bits) {
  return __half2float(std::bit_cast<__half>(bits));
}

std::uint16_t half_of(std::uint32_t pair, int which) {
  return static_cast<std::uint16_t>(pair >> (16 * which));
}

// Lane l holds in each register two neighbouring elements of row l
// 4 (a) or column l
// 4 (b), at depth 2 * (l % 4). a's second register is eight rows down, its third eight deeper.
template <float (*widen)(std::uint16_t)>
void perform_product(const LaneArguments& lanes) {
  float a[rows][depth];
  float b[depth][columns];
  for (int lane = 0; lane < lanes_of_a_warp; ++lane) {
    const auto& part = lanes.at<MatrixProduct>(lane);
    const int group = lane / 4;
    for (int which = 0; which < 2; ++which) {
      const int k = 2 * (lane % 4) + which;
      for (int i = 0; i < 4; ++i) {
        a[group + 8 * (i % 2)][k + 8 * (i / 2)] = widen(half_of(part.a[i], which));
      }
      for (int i = 0; i < 2; ++i) b[k + 8 * i][group] = widen(half_of(part.b[i], which));
    }
  }
  for (int lane = 0; lane < lanes_of_a_warp; ++lane) {
    auto& part = lanes.at<MatrixProduct>(lane);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2);
      const int column = 2 * (lane % 4) + i % 2;
      float sum = part.c[i];
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
      part.d[i] = sum;
    }
  }
}

// Lane l supplied row l % 8 of matrix l
// 8.
template <bool transposed>
void perform_load(const LaneArguments& lanes) {
  for (int lane = 0; lane < lanes_of_a_warp; ++lane) {
    auto& part = lanes.at<MatrixLoad>(lane);
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint32_t pair = 0;
      for (int which = 0; which < 2; ++which) {
        const int i = lane / 4;
        const int j = 2 * (lane % 4) + which;
        const int row = transposed ? j : i;
        const int column = transposed ? i : j;
        const std::uint32_t element = lanes.at<MatrixLoad>(8 * matrix + row).row[column];
        pair |= element << (16 * which);
      }
      part.fragment[matrix] = pair;
    }
  }
}

}  // namespace

void multiply_bfloat16(MatrixProduct& part, const Operation& operation) {
  warp_meeting(whole_warp, &part, perform_product<from_bfloat16>, operation);
}

void multiply_float16(MatrixProduct& part, const Operation& operation) {
  warp_meeting(whole_warp, &part, perform_product<from_float16>, operation);
}

void distribute_matrices(MatrixLoad& part, bool transposed, const Operation& operation) {
  warp_meeting(whole_warp, &part, transposed ? perform_load<true> : perform_load<false>, operation);
}

}  // namespace tessera::emulator
