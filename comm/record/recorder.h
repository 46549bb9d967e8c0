// The collectives that a planned rank would have done.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "comm/call.h"
#include "comm/held_memory.h"

namespace tessera::comm {

// Calls with equal fields are counted together.
struct RecordedCall {
  Phase phase = Phase::other;
  Op op = Op::none;
  std::uint32_t unit = 0;
  int ranks = 1;  // of the communicator
  friend bool operator<(const RecordedCall& a, const RecordedCall& b) {
    return std::tie(a.phase, a.op, a.unit, a.ranks) < std::tie(b.phase, b.op, b.unit, b.ranks);
  }
};

struct RecordedTraffic {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // that reach the rank from others
};

// One call, with what its time depends on.
struct RecordedCollective {
  Phase phase = Phase::other;
  Op op = Op::none;
  std::uint32_t unit = 0;
  int ranks = 1;   // that take part
  int stride = 1;  // between their numbers in the world
  // A gather: the gathered bytes; a sum: the bytes of one rank before it; all_to_all: those of a
  // rank's pieces, its own included; messages: the bytes of all ranks; Op::send, from one rank to
  // each of the others: what each of these gets.
  double bytes = 0;
  DType dtype = DType::float32;      // of the elements that are summed
  DType sum_dtype = DType::float32;  // and of their sums
  bool one_memory = false;
};

// One for each rank, shared by its communicators; used by its thread alone.
class Recorder {
 public:
  void count(const RecordedCall& call, std::uint64_t bytes) {
    RecordedTraffic& traffic = calls_[call];
    ++traffic.calls;
    traffic.bytes += bytes;
  }
  [[nodiscard]] const std::map<RecordedCall, RecordedTraffic>& calls() const { return calls_; }
  // In program order: the calling thread's WorkLog has each collective under its number.
  void note(const RecordedCollective& collective, Device device);
  [[nodiscard]] const std::vector<RecordedCollective>& collectives() const { return collectives_; }
  // Forgets everything that was counted so far.
  void clear() {
    calls_.clear();
    collectives_.clear();
  }
  [[nodiscard]] const std::shared_ptr<HeldMemory>& held_memory() const { return held_memory_; }

 private:
  std::map<RecordedCall, RecordedTraffic> calls_;
  std::vector<RecordedCollective> collectives_;
  std::shared_ptr<HeldMemory> held_memory_ = std::make_shared<HeldMemory>();
};

}  // namespace tessera::comm
