// The order in which blocks, warps and lanes get their turns.
// CUDA guarantees no order, so a kernel must be right under each. One warp at a time runs as far as
// it can. That, and not a uniformly random choice, makes a thread meet data that another has not
// written yet, or has already overwritten.
#pragma once

#include <cstdint>

namespace tessera::emulator {

// splitmix64: small, and the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // Uniform enough for schedules, in [0, bound).
  unsigned below(unsigned bound) { return static_cast<unsigned>(next() % bound); }

 private:
  std::uint64_t state_;
};

struct Schedule {
  enum class Order { forward, reverse, random };
  Order order = Order::forward;
  std::uint64_t seed = 1;
  int threads = 1;  // OS threads that run blocks of one grid
  // The unit that the thread sanitizer treats as a thread: each thread of a block, or the OS thread
  // that runs the block. The sanitizer remembers the accesses of about 250 threads and forgets
  // older ones. So it surely finds races between streams only where a block does not use all of
  // those.
  enum class Races { threads, streams };
  Races races = Races::threads;

  // TESSERA_EMULATOR_SCHEDULE = forward | reverse | random | random:SEED,
  // TESSERA_EMULATOR_THREADS = 1 .. 64 and TESSERA_EMULATOR_RACES = threads | streams. Throws
  // std::invalid_argument for other values.
  static Schedule from_environment();
};

// A permutation of 0 .. count-1 that needs no memory: the order of a grid's blocks.
class BlockOrder {
 public:
  BlockOrder(const Schedule& schedule, std::uint64_t count);
  [[nodiscard]] std::uint64_t at(std::uint64_t turn) const;

 private:
  Schedule::Order order_;
  std::uint64_t count_, factor_ = 1, offset_ = 0;
};

}  // namespace tessera::emulator
