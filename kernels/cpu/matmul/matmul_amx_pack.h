// Copies bfloat16 matrices into the tiles that AMX multiplies. Included on x86 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

// Marks a function that may use AMX and the AVX-512 that comes with it, in a file compiled for
// older processors.
#define TESSERA_AMX \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace tessera::kernels::cpu::amx {

inline constexpr std::int64_t kBlock = 32;  // rows, and columns, of c that are summed at once
inline constexpr std::int64_t kDepth = 32;  // k of a tile
inline constexpr std::int64_t kTileElements = 512;  // 16 rows of 64 bytes

TESSERA_AMX inline __m512 widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// Rounds to nearest even, like to_bfloat16(); results too small for a normal number become zero.
TESSERA_AMX inline __m256i narrow(__m512 values) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
}

// A part of an operand: its first element, the elements between rows as stored, and whether those
// rows are the operand's columns.
struct Operand {
  const std::uint16_t* data;
  std::int64_t stride;
  bool transposed;
};

// Packs b[depths, columns] with columns <= 32: two tiles of 16 columns for each 32 of k. A row of a
// tile holds two consecutive k of every column. Zeros beyond the edges.
void pack_b_panel(const Operand& b, std::int64_t depths, std::int64_t columns, std::uint16_t* out);

// Packs a[rows, depths]: one block of 32 rows after another, with two tiles of 16 rows for each 32
// of k.
void pack_a_blocks(const Operand& a, std::int64_t rows, std::int64_t depths, std::uint16_t* out);

}  // namespace tessera::kernels::cpu::amx
