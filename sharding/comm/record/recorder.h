// What a planned rank's collectives would have done.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "sharding/comm/call.h"
#include "sharding/comm/held_memory.h"

namespace tessera::comm {

// Which calls are counted together.
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

// One for a rank, shared by its communicators; used by its thread alone.
class Recorder {
 public:
  void count(const RecordedCall& call, std::uint64_t bytes) {
    RecordedTraffic& traffic = calls_[call];
    ++traffic.calls;
    traffic.bytes += bytes;
  }
  [[nodiscard]] const std::map<RecordedCall, RecordedTraffic>& calls() const { return calls_; }
  // Begins anew: what was counted so far is forgotten.
  void clear() { calls_.clear(); }
  [[nodiscard]] const std::shared_ptr<HeldMemory>& held_memory() const { return held_memory_; }

 private:
  std::map<RecordedCall, RecordedTraffic> calls_;
  std::shared_ptr<HeldMemory> held_memory_ = std::make_shared<HeldMemory>();
};

}  // namespace tessera::comm
