// A balanced Feistel network over the next power of four, with cycle walking back into the range.
#include "engine/data/permutation.h"

#include "base/error.h"

namespace tessera {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood, 2014): every input bit reaches every output bit.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return scramble(scramble(a + golden_gamma) ^ (b * golden_gamma + 1));
}

Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) : n_(n) {
  TESSERA_REQUIRE(n > 0, "a permutation needs at least one element");
  // Small domains mix badly in so few rounds, so they are taken from a domain of 256.
  half_bits_ = 4;
  while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
  std::uint64_t state = mix(seed, epoch);
  for (std::uint64_t& key : keys_) key = scramble(state += golden_gamma);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (scramble(right + key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  TESSERA_REQUIRE(index < n_, "index {} is outside a permutation of {}", index, n_);
  // The permutation's cycle through `index` returns to the range at `index` itself at the latest.
  std::uint64_t value = index;
  do {
    value = encrypt(value);
  } while (value >= n_);
  return value;
}

std::uint64_t place_in_epoch(std::int64_t sample, std::int64_t samples, bool shuffled,
                             std::uint64_t seed) {
  TESSERA_REQUIRE(sample >= 0 && samples > 0, "sample {} of {} in an epoch", sample, samples);
  const auto index = static_cast<std::uint64_t>(sample % samples);
  if (!shuffled) return index;
  return Permutation(static_cast<std::uint64_t>(samples), seed,
                     static_cast<std::uint64_t>(sample / samples))(index);
}

}  // namespace tessera
