// The 8-bit codes of optimizer states: the dynamic map of Dettmers et al. 2022 (arXiv:2110.02861),
// as bitsandbytes' blockwise optimizers have it.
//
// A block of eight_bit_block numbers has a scale s, the largest magnitude in it. A code stands for
// a value of the map times s. The positive values are 0, 1, and in each decade [10^(k-7),
// 10^(k-6)), k = 0..6, the middles of equal parts: 2^k parts in the signed map, 2^(k+1) in the
// unsigned one. Values ascend with their codes; the signed map has the negative values but -1 too,
// and 0 at 127.
//
// The code of x is that of the value nearest to x / s, of the smaller magnitude at a tie. In the
// unsigned map, whose numbers are divisors, a positive x does not become 0 but the smallest value.
// If a block has a number that is not finite, its scale is NaN, and so are all of its numbers.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

inline constexpr std::int64_t eight_bit_block = 256;
inline constexpr int eight_bit_zero = 127;  // the code of 0 in the signed map

// The magnitudes of a map, ascending: number 0 is 0, the last is 1.
struct EightBitMap {
  bool is_signed;
  int count;  // 129 or 256
  float magnitudes[256];
  // The number of x is i for below[i] < x <= below[i + 1]: the middle of magnitudes i-1 and i;
  // -infinity for i = 0, infinity above the last, and 0 for i = 1 of the unsigned map.
  float below[257];

  explicit EightBitMap(bool is_signed);
  // The number of the magnitude that is nearest to x >= 0; 0 for NaN.
  [[nodiscard]] int nearest(float x) const;
  // The value of each code.
  [[nodiscard]] std::array<float, 256> values() const;
};

// The codes of a block of `count` numbers, at most eight_bit_block. Returns the scale.
float encode_eight_bit(const EightBitMap& map, const float* numbers, std::int64_t count,
                       std::uint8_t* codes);
// The numbers of a block.
void decode_eight_bit(const EightBitMap& map, const std::uint8_t* codes, float scale,
                      std::int64_t count, float* numbers);

const EightBitMap& signed_eight_bit_map();
const EightBitMap& unsigned_eight_bit_map();

}  // namespace tessera
