// The access checker as the runtime's streams, events and memory feed it. What it does and does not
// find stands in checker.h.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulator/access/access_clock.h"
#include "emulator/access/access_history.h"
#include "emulator/runtime/launch.h"

namespace tessera::emulator {

// All members may be called by any host thread. Never by the threads that run streams: its lock
// would order them.
class AccessChecker {
 public:
  AccessChecker();

  void set_enabled(bool enabled);
  [[nodiscard]] bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  [[nodiscard]] int conflicts() const;
  [[nodiscard]] std::vector<std::string> reports() const;
  void reset();

  // A stream begins and ends. A later stream may get the same number; it then passes for the
  // continuation of the earlier one.
  Actor add_stream();
  void remove_stream(Actor stream);

  // An operation is put on the stream; the name points to one that lives as long as the program.
  void operation(Actor stream, const std::string* name, const char* what,
                 std::span<const Access> accesses);
  // What the stream knows at its end is stored in `known`, and what the point of another stream
  // knew is added to what the stream knows.
  void record(Actor stream, AccessClock& known);
  void wait(Actor stream, const AccessClock& known);
  // The host has waited for such a point.
  void host_waited(const AccessClock& known);
  void host_access(const Access& access, const char* what);
  void forget(const void* memory, std::size_t bytes);

 private:
  void begin(Actor stream);
  void check(const Access& access, const PastAccess& now, const AccessClock& known);
  void report(const PastAccess& past, const PastAccess& now, AccessHistory::Range range);

  std::atomic<bool> enabled_;
  mutable std::mutex mutex_;
  std::vector<AccessClock> clocks_{1};  // by actor
  std::vector<Actor> unused_;
  AccessHistory history_;
  int conflicts_ = 0;
  std::vector<std::string> reports_;
  // What was told: the two operations and their streams.
  std::set<std::pair<std::string, std::string>> told_;
};

}  // namespace tessera::emulator
