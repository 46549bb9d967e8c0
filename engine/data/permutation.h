// A random order of 0..n-1 that needs no memory: a keyed permutation, evaluated index by index.
#pragma once

#include <cstdint>

namespace tessera {

// The order is a function of (n, seed, epoch): the same on every rank and machine, and after
// resume.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);
  [[nodiscard]] std::uint64_t size() const { return n_; }
  // The element at `index`. Over all indices, each of 0..n-1 occurs exactly once.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const;

 private:
  [[nodiscard]] std::uint64_t encrypt(std::uint64_t value) const;

  static constexpr int rounds = 8;
  std::uint64_t n_;
  unsigned half_bits_;
  std::uint64_t keys_[rounds];
};

// The place of a sample, counted on over epochs of `samples` each, in the data: `sample` modulo
// `samples`, and shuffled by the permutation of its epoch. Requires sample >= 0.
std::uint64_t place_in_epoch(std::int64_t sample, std::int64_t samples, bool shuffled,
                             std::uint64_t seed);

// Mixes two numbers into a 64-bit number; the same on every machine.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

}  // namespace tessera
