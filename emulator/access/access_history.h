// The last accesses of each range of bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "emulator/access/access_clock.h"

namespace tessera::emulator {

// A recorded access. `what` lives as long as the program.
struct PastAccess {
  Actor actor = host_actor;
  std::uint64_t operation = 0;
  const char* what = "";
  const std::string* stream_name = nullptr;
  bool write = false;

  bool operator==(const PastAccess&) const = default;
};

// Ranges of bytes with the accesses that a later one must be ordered after: the last write, and
// each actor's last read since. Ranges split where accesses end inside them and join again when
// their histories are equal, so a training step that repeats leaves the map as large as it was.
class AccessHistory {
 public:
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };

  // Calls visit(past, range) for every recorded access of another actor that conflicts with `now`
  // (one of the two writes), then records `now` in place of the accesses that it supersedes.
  void access(Range range, const PastAccess& now,
              const std::function<void(const PastAccess&, Range)>& visit);
  // Forgets the range: its memory is freed.
  void forget(Range range);
  void clear() { segments_.clear(); }
  [[nodiscard]] std::size_t size() const { return segments_.size(); }

 private:
  struct Segment {
    std::uintptr_t end = 0;
    std::vector<PastAccess> accesses;  // the write, if any, comes first
  };
  using Segments = std::map<std::uintptr_t, Segment>;

  void split_at(std::uintptr_t address);
  void fill_gaps(Range range);
  void join(Range range);

  Segments segments_;
};

}  // namespace tessera::emulator
