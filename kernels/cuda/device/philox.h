// Philox4x32-10 on the device, with the same bits as kernels/random.h's philox().
#pragma once

#include <cstdint>

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/map.h"
#include "kernels/random.h"

namespace tessera::kernels::cuda {

// Elements that draw from one block.
inline constexpr int philox_words = 4;

struct PhiloxBlock {
  std::uint32_t word[philox_words];
};

// Philox(counter = {block, key.stream}, key = key.seed), low halves first.
__device__ __forceinline__ PhiloxBlock philox_block(RandomKey key, std::uint64_t block) {
  auto x0 = static_cast<std::uint32_t>(block);
  auto x1 = static_cast<std::uint32_t>(block >> 32);
  auto x2 = static_cast<std::uint32_t>(key.stream);
  auto x3 = static_cast<std::uint32_t>(key.stream >> 32);
  auto key0 = static_cast<std::uint32_t>(key.seed);
  auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * x0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * x2;
    x0 = static_cast<std::uint32_t>(product1 >> 32) ^ x1 ^ key0;
    x1 = static_cast<std::uint32_t>(product1);
    x2 = static_cast<std::uint32_t>(product0 >> 32) ^ x3 ^ key1;
    x3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{x0, x1, x2, x3}};
}

// A layout whose groups begin at blocks of words; the array's element 0 draws word `drawn_first`.
// Uses vectors if memory allows it.
template <int width>
Layout layout_of_draws(std::int64_t n, std::int64_t drawn_first,
                       std::initializer_list<MappedArray> arrays) {
  static_assert(width % philox_words == 0);
  const int least = static_cast<int>(drawn_first % philox_words);
  for (int skew = least; skew < width; skew += philox_words) {
    if (std::all_of(arrays.begin(), arrays.end(), [&](const MappedArray& array) {
          return groups_are_aligned<width>(array, skew);
        })) {
      return {n, skew, true, true};
    }
  }
  return {n, least, false, true};
}

// The words of a place of such a layout. A group before the array's first element may begin before
// word 0 of the stream; its draws there are not used.
template <int width>
__device__ __forceinline__ void draw_words(RandomKey key, std::int64_t drawn_first,
                                           const Place<width>& place,
                                           std::uint32_t (&words)[width]) {
  const std::int64_t block = (drawn_first + place.first) / philox_words;
#pragma unroll
  for (int k = 0; k < width; k += philox_words) {
    const PhiloxBlock drawn =
        philox_block(key, static_cast<std::uint64_t>(block + k / philox_words));
#pragma unroll
    for (int word = 0; word < philox_words; ++word) words[k + word] = drawn.word[word];
  }
}

}  // namespace tessera::kernels::cuda
