// A random order of 0..n-1 that needs no memory: a keyed permutation, evaluated index by index.
#pragma once

#include <cstdint>

namespace tessera {

// The order is a function of (n, seed, epoch) alone: the same on every rank, machine and resume.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);
  [[nodiscard]] std::uint64_t size() const { return n_; }
  // The element at `index`, each of 0..n-1 exactly once over all indices.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const;

 private:
  [[nodiscard]] std::uint64_t encrypt(std::uint64_t value) const;

  static constexpr int rounds = 8;
  std::uint64_t n_;
  unsigned half_bits_;
  std::uint64_t keys_[rounds];
};

// A well-mixed 64-bit number of two others; the same everywhere.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

}  // namespace tessera
