// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A number is a function of
// (seed, stream, element index), so any part of a tensor draws the same numbers as the whole.
#pragma once

#include <array>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // the draw's purpose: a parameter's number, or (step, op) of a dropout
};

// Element i of a sequence takes word i%4 of the block philox(counter = {i/4 low, i/4 high, stream
// low, stream high}, key = {seed low, seed high}).
std::array<std::uint32_t, 4> philox(RandomKey key, std::uint64_t block);

enum class Distribution : std::uint8_t { uniform, normal };

// out[i] = the draw of element first + i. uniform: a + (b-a)*u, u in [0,1) of 24 bits. normal: mean
// a, deviation b, Box-Muller over words (0,1) and (2,3) of the element's block.
struct RandomFill {
  void* out;
  std::int64_t n, first;
  DType dtype;
  RandomKey key;
  Distribution distribution;
  double a, b;
};

// out = x * keep / (1-p) (+ residual), element i kept when draw(first + i) >= p (32-bit threshold
// p*2^32). The backward is the same call on the gradient without residual. out may equal x.
struct Dropout {
  const void* x;
  const void* residual;  // or null
  void* out;
  std::int64_t n, first;
  DType dtype;
  RandomKey key;
  float p;
  bool accumulate = false;
};

}  // namespace tessera::kernels
