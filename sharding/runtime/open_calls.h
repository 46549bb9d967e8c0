// The calls of each unit's module that are under way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sharding/units/unit.h"

namespace tessera {

class OpenCalls {
 public:
  struct Counts {
    int forwards = 0;
    int backwards = 0;
    int awaited_backwards = 0;  // calls that this backward has not finished
  };

  explicit OpenCalls(std::size_t units) : counts_(units) {}

  [[nodiscard]] Counts& of(const Unit& unit) {
    return counts_[static_cast<std::size_t>(unit.index())];
  }
  [[nodiscard]] const Counts& of(const Unit& unit) const {
    return counts_[static_cast<std::size_t>(unit.index())];
  }
  // The module of the unit is being called: its parameters stay unsharded.
  [[nodiscard]] bool in_use(const Unit& unit) const { return is_open(of(unit)); }
  [[nodiscard]] bool any() const { return std::any_of(counts_.begin(), counts_.end(), is_open); }
  [[nodiscard]] bool any_forward() const {
    return std::any_of(counts_.begin(), counts_.end(),
                       [](const Counts& counts) { return counts.forwards > 0; });
  }
  void end_backward() {
    for (Counts& counts : counts_) counts.backwards = counts.awaited_backwards = 0;
  }

 private:
  static bool is_open(const Counts& counts) { return counts.forwards > 0 || counts.backwards > 0; }

  std::vector<Counts> counts_;  // by Unit::index()
};

}  // namespace tessera
