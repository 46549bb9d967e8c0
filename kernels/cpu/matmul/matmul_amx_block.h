// One block of 32 x 32 sums on AMX: the products, and the work in parallel to the matrix unit.
// Included on x86 only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/matmul/matmul_amx_pack.h"
#include "kernels/matmul.h"

// GCC 12 reports the deliberately undefined vectors inside its own intrinsics as mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tessera::kernels::cpu::amx {

// Sums of a block that still have to be written to c.
struct FinishedBlock {
  const float* sums = nullptr;
  std::int64_t stride = 0, row = 0, column = 0, rows = 0, columns = 0;
};

// c = alpha * sums (+ c) (+ bias), for some rows of a block that may extend past c's edges.
TESSERA_AMX inline void finish_rows(const Matmul& p, const FinishedBlock& block, bool add_c,
                                    std::int64_t first, std::int64_t last) {
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  for (std::int64_t j = 0; j < block.columns; j += 16) {
    const auto mask =
        static_cast<__mmask16>((1u << std::min<std::int64_t>(16, block.columns - j)) - 1u);
    __m512 bias = _mm512_setzero_ps();
    if (p.bias != nullptr) {
      bias = widen(_mm256_maskz_loadu_epi16(
          mask, static_cast<const std::uint16_t*>(p.bias) + block.column + j));
    }
    for (std::int64_t r = first; r < last; ++r) {
      __m512 value = _mm512_mul_ps(_mm512_loadu_ps(block.sums + r * block.stride + j), alpha);
      const std::int64_t at = (block.row + r) * p.ldc + block.column + j;
      if (p.out_dtype == float32) {
        float* const c = static_cast<float*>(p.c) + at;
        if (add_c) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, c));
        if (p.bias != nullptr) value = _mm512_add_ps(value, bias);
        _mm512_mask_storeu_ps(c, mask, value);
      } else {
        std::uint16_t* const c = static_cast<std::uint16_t*>(p.c) + at;
        if (add_c) value = _mm512_add_ps(value, widen(_mm256_maskz_loadu_epi16(mask, c)));
        if (p.bias != nullptr) value = _mm512_add_ps(value, bias);
        _mm256_mask_storeu_epi16(c, mask, narrow(value));
      }
    }
  }
}

// 32 rows of a over a chunk of k, in tiles of 16 rows for each 32 of k.
struct BlockRows {
  const std::uint16_t* upper;
  const std::uint16_t* lower;
  std::int64_t row_bytes;  // between rows of a tile
  std::int64_t step;       // elements between the tiles of consecutive k
};

// Rows that will be needed soon. A few lines at a time are fetched while the matrix unit works; all
// at once they would delay the loads of the tiles.
struct UpcomingRows {
  const char* data = nullptr;
  std::int64_t stride = 0;  // bytes between rows
  std::int64_t rows = 0;
};

// Finishes one block while the matrix unit sums the next: the unit works asynchronously.
class Finisher {
 public:
  Finisher(const Matmul& product, bool add_c) : p_(product), add_c_(add_c) {}

  TESSERA_AMX void take(const FinishedBlock& block, std::int64_t steps) {
    finish(block_.rows);
    block_ = block;
    next_ = 0;
    per_step_ = (block.rows + steps - 1) / steps;
  }
  TESSERA_AMX void step() {
    if (next_ < block_.rows) finish(std::min(next_ + per_step_, block_.rows));
  }
  TESSERA_AMX void finish_all() { finish(block_.rows); }

 private:
  TESSERA_AMX void finish(std::int64_t last) {
    if (next_ < last) finish_rows(p_, block_, add_c_, next_, last);
    next_ = last;
  }

  const Matmul& p_;
  bool add_c_;
  FinishedBlock block_;
  std::int64_t next_ = 0, per_step_ = 0;
};

// The work in parallel to the sums of a block.
struct Background {
  Finisher finisher;
  UpcomingRows next_c;  // the block of c to the right: its rows in turn
  UpcomingRows next_a;  // the block of a below: line by line of some of its rows

  TESSERA_AMX void step(std::int64_t index, std::int64_t steps) {
    finisher.step();
    const std::int64_t c_rows = (next_c.rows + steps - 1) / steps;
    for (std::int64_t r = index * c_rows; r < std::min(next_c.rows, (index + 1) * c_rows); ++r) {
      __builtin_prefetch(next_c.data + r * next_c.stride, 1);
      __builtin_prefetch(next_c.data + r * next_c.stride + 64, 1);
    }
    for (std::int64_t r = 0; r < next_a.rows; ++r) {
      __builtin_prefetch(next_a.data + r * next_a.stride + index * 64);
    }
  }
};

// Where a block's sums start (zero if null) and are stored.
struct BlockSums {
  const float* start;
  std::int64_t start_stride;
  float* sums;
  std::int64_t stride;
};

// sums[32, 32] = start + a * b over `depth_blocks` tiles of k, b packed.
TESSERA_AMX inline void multiply_block(const BlockRows& a, const std::uint16_t* b,
                                       std::int64_t depth_blocks, const BlockSums& c,
                                       Background& background) {
  if (c.start != nullptr) {
    const std::int64_t bytes = c.start_stride * 4;
    _tile_loadd(0, c.start, bytes);
    _tile_loadd(1, c.start + 16, bytes);
    _tile_loadd(2, c.start + 16 * c.start_stride, bytes);
    _tile_loadd(3, c.start + 16 * c.start_stride + 16, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::uint16_t* upper = a.upper;
  const std::uint16_t* lower = a.lower;
  for (std::int64_t block = 0; block < depth_blocks; ++block) {
    _tile_loadd(4, upper, a.row_bytes);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTileElements, 64);
    _tile_loadd(5, lower, a.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    upper += a.step;
    lower += a.step;
    b += 2 * kTileElements;
    background.step(block, depth_blocks);
  }
  const std::int64_t bytes = c.stride * 4;
  _tile_stored(0, c.sums, bytes);
  _tile_stored(1, c.sums + 16, bytes);
  _tile_stored(2, c.sums + 16 * c.stride, bytes);
  _tile_stored(3, c.sums + 16 * c.stride + 16, bytes);
}

// Loads a block of c, with zeros beyond c's edges.
TESSERA_AMX inline void load_block(const Matmul& p, float* out, std::int64_t row,
                                   std::int64_t column, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < kBlock; ++r) {
    for (std::int64_t j = 0; j < kBlock; j += 16) {
      const std::int64_t count = r < rows ? std::clamp<std::int64_t>(columns - j, 0, 16) : 0;
      const auto mask = static_cast<__mmask16>((1u << count) - 1u);
      const float* const from = static_cast<const float*>(p.c) + (row + r) * p.ldc + column + j;
      _mm512_storeu_ps(out + r * kBlock + j, _mm512_maskz_loadu_ps(mask, from));
    }
  }
}

}  // namespace tessera::kernels::cpu::amx
