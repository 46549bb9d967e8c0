// Copies bfloat16 matrices into the tiles that AMX multiplies. Two consecutive k form one 32-bit
// element of a tile; a matrix with the other memory order is transposed in such elements.
#if defined(__x86_64__) && defined(__linux__)

#include "kernels/cpu/matmul/matmul_amx_pack.h"

#include <algorithm>

// GCC 12 reports the deliberately undefined vectors inside its own intrinsics as mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tessera::kernels::cpu::amx {
namespace {

// Elements ahead to prefetch in a row. The processor's prefetcher cannot follow as many rows as a
// tile has.
constexpr std::int64_t kAhead = 256;

constexpr __mmask32 low_bits(std::int64_t count) {
  const std::int64_t bits = std::clamp<std::int64_t>(count, 0, 32);
  return bits == 32 ? ~__mmask32{0} : (__mmask32{1} << bits) - 1;
}

// Transposes 16 x 16 elements of 32 bits.
TESSERA_AMX inline void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int half = 0; half < 16; half += 8) {
    for (int i = 0; i < 4; ++i) {
      t[half + i] = _mm512_shuffle_i32x4(rows[half + i], rows[half + i + 4], 0x88);
      t[half + i + 4] = _mm512_shuffle_i32x4(rows[half + i], rows[half + i + 4], 0xdd);
    }
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Up to 32 consecutive elements of each of up to 16 rows.
TESSERA_AMX inline void load_rows(const std::uint16_t* from, std::int64_t stride, std::int64_t rows,
                                  std::int64_t columns, __m512i (&out)[16]) {
  for (int i = 0; i < 16; ++i) __builtin_prefetch(from + i * stride + kAhead);
  if (rows >= 16 && columns >= 32) {
    for (int i = 0; i < 16; ++i) out[i] = _mm512_loadu_si512(from + i * stride);
    return;
  }
  const __mmask32 mask = low_bits(columns);
  for (int i = 0; i < 16; ++i) {
    out[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * stride) : _mm512_setzero_si512();
  }
}

// Up to 16 pairs of rows, up to 16 elements of each: a pair's elements side by side.
TESSERA_AMX inline void load_row_pairs(const std::uint16_t* from, std::int64_t stride,
                                       std::int64_t rows, std::int64_t columns,
                                       __m512i (&out)[16]) {
  const auto mask = static_cast<__mmask16>(low_bits(std::min<std::int64_t>(columns, 16)));
  for (int i = 0; i < 16; ++i) {
    const std::uint16_t* const pair = from + 2 * i * stride;
    __builtin_prefetch(pair + kDepth * stride);  // the tile of the next k
    __builtin_prefetch(pair + (kDepth + 1) * stride);
    const __m256i even =
        2 * i < rows ? _mm256_maskz_loadu_epi16(mask, pair) : _mm256_setzero_si256();
    const __m256i odd =
        2 * i + 1 < rows ? _mm256_maskz_loadu_epi16(mask, pair + stride) : _mm256_setzero_si256();
    out[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
}

TESSERA_AMX inline void store_tile(const __m512i (&rows)[16], std::uint16_t* out) {
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * 32, rows[i]);
}

}  // namespace

TESSERA_AMX void pack_b_panel(const Operand& b, std::int64_t depths, std::int64_t columns,
                              std::uint16_t* out) {
  __m512i rows[16];
  for (std::int64_t k = 0; k < depths; k += kDepth) {
    for (std::int64_t column = 0; column < kBlock; column += 16, out += kTileElements) {
      if (b.transposed) {
        load_rows(b.data + column * b.stride + k, b.stride, columns - column, depths - k, rows);
        transpose(rows);
      } else {
        load_row_pairs(b.data + k * b.stride + column, b.stride, depths - k, columns - column,
                       rows);
      }
      store_tile(rows, out);
    }
  }
}

TESSERA_AMX void pack_a_blocks(const Operand& a, std::int64_t rows, std::int64_t depths,
                               std::uint16_t* out) {
  __m512i tile[16];
  const std::int64_t block_elements = kBlock * ((depths + kDepth - 1) / kDepth * kDepth);
  for (std::int64_t k = 0; k < depths; k += kDepth) {
    for (std::int64_t row = 0; row < (rows + kBlock - 1) / kBlock * kBlock; row += 16) {
      if (a.transposed) {
        load_row_pairs(a.data + k * a.stride + row, a.stride, depths - k, rows - row, tile);
        transpose(tile);
      } else {
        load_rows(a.data + row * a.stride + k, a.stride, rows - row, depths - k, tile);
      }
      store_tile(tile, out + row / kBlock * block_elements +
                           (k / kDepth * 2 + row / 16 % 2) * kTileElements);
    }
  }
}

}  // namespace tessera::kernels::cpu::amx

#endif
