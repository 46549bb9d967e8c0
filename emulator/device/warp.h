// Operations between the lanes of a warp: barrier, shuffles, votes, matches.
// All lanes that the mask names must reach the operation with the same mask, and the mask must name
// the caller. Only __syncwarp orders memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator/device/language.h"
#include "emulator/scheduler/thread_operations.h"
#include "emulator/scheduler/warp_operations.h"

namespace tessera::emulator {

// The types that CUDA's shuffles accept.
template <class T>
concept Shuffled = OneOf<T, int, unsigned, long, unsigned long, long long, unsigned long long,
                         float, double, __half, __half2, __nv_bfloat16, __nv_bfloat162>;

template <class T>
std::uint64_t to_bits(const T& value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, int source, const Operation& operation) {
  return from_bits<T>(shuffle_bits(mask, to_bits(value), source, operation));
}

// Lanes are grouped into segments of `width`, a power of two. A lane whose source lies beyond its
// segment keeps its own value.
inline int first_of_segment(int lane, int width) {
  return lane & ~(width - 1);
}

}  // namespace tessera::emulator

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       tessera::emulator::Place place = tessera::emulator::Place::here()) {
  tessera::emulator::warp_barrier(mask, {"__syncwarp", place});
}

// The lanes that have not exited. A GPU may return fewer: those that run together at the moment.
inline unsigned __activemask() {
  return tessera::emulator::live_lanes();
}

template <tessera::emulator::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              tessera::emulator::Place place = tessera::emulator::Place::here()) {
  using namespace tessera::emulator;
  const int from = first_of_segment(lane(), width) | (source & (width - 1));
  return shuffle(mask, value, from, {"__shfl_sync", place});
}
template <tessera::emulator::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 tessera::emulator::Place place = tessera::emulator::Place::here()) {
  using namespace tessera::emulator;
  const int self = lane();
  const int from = self - static_cast<int>(delta);
  return shuffle(mask, value, from < first_of_segment(self, width) ? self : from,
                 {"__shfl_up_sync", place});
}
template <tessera::emulator::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   tessera::emulator::Place place = tessera::emulator::Place::here()) {
  using namespace tessera::emulator;
  const int self = lane();
  const int from = self + static_cast<int>(delta);
  return shuffle(mask, value, from >= first_of_segment(self, width) + width ? self : from,
                 {"__shfl_down_sync", place});
}
template <tessera::emulator::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize,
                  tessera::emulator::Place place = tessera::emulator::Place::here()) {
  using namespace tessera::emulator;
  const int self = lane();
  const int from = self ^ lanes;
  return shuffle(mask, value, from >= first_of_segment(self, width) + width ? self : from,
                 {"__shfl_xor_sync", place});
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              tessera::emulator::Place place = tessera::emulator::Place::here()) {
  return tessera::emulator::ballot(mask, predicate != 0, {"__ballot_sync", place});
}

// The lanes of the mask whose value has the same bits.
template <tessera::emulator::OneOf<int, unsigned, long, unsigned long, long long,
                                   unsigned long long, float, double>
              T>
unsigned __match_any_sync(unsigned mask, T value,
                          tessera::emulator::Place place = tessera::emulator::Place::here()) {
  return tessera::emulator::match_bits(mask, tessera::emulator::to_bits(value),
                                       {"__match_any_sync", place});
}

// NOLINTEND(bugprone-reserved-identifier)
