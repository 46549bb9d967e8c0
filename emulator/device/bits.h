// Counts and reinterprets bits.
#pragma once

#include <bit>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

inline int __popc(unsigned value) {
  return std::popcount(value);
}
inline long long __double_as_longlong(double value) {
  return std::bit_cast<long long>(value);
}

// NOLINTEND(bugprone-reserved-identifier)
