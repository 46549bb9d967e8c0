// Vector clocks of the access checker.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::emulator {

// An actor accesses memory: actor 0 is the host, the others are streams.
using Actor = std::size_t;
inline constexpr Actor host_actor = 0;

// The operations of each actor that are known to have happened: by actor, the number of its last
// known operation (operations count from 1).
class AccessClock {
 public:
  [[nodiscard]] bool knows(Actor actor, std::uint64_t operation) const {
    return actor < known_.size() && known_[actor] >= operation;
  }
  [[nodiscard]] std::uint64_t at(Actor actor) const {
    return actor < known_.size() ? known_[actor] : 0;
  }
  void set(Actor actor, std::uint64_t operation) {
    if (actor >= known_.size()) known_.resize(actor + 1, 0);
    known_[actor] = operation;
  }
  void merge(const AccessClock& other) {
    if (other.known_.size() > known_.size()) known_.resize(other.known_.size(), 0);
    for (std::size_t i = 0; i < other.known_.size(); ++i) {
      known_[i] = std::max(known_[i], other.known_[i]);
    }
  }
  void clear() { known_.clear(); }

 private:
  std::vector<std::uint64_t> known_;
};

}  // namespace tessera::emulator
