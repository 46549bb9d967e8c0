// The access checker as the runtime's streams, events and memory call it. checker.h describes what
// it finds and what it misses.
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

// Any host thread may call all members. The threads that run streams must not: the checker's lock
// would order them.
class AccessChecker {
 public:
  AccessChecker();

  void set_enabled(bool enabled);
  [[nodiscard]] bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  [[nodiscard]] int conflicts() const;
  [[nodiscard]] std::vector<std::string> reports() const;
  void reset();

  // Begin and end of a stream. A later stream may get the same number; it then counts as the
  // continuation of the earlier one.
  Actor add_stream();
  void remove_stream(Actor stream);

  // Puts an operation on the stream; the name points to a string that lives as long as the program.
  void operation(Actor stream, const std::string* name, const char* what,
                 std::span<const Access> accesses);
  // record() stores the stream's knowledge at its end in `known`. wait() adds the knowledge of
  // another stream's point to the stream's own.
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
  // Conflicts that were reported: the two operations and their streams.
  std::set<std::pair<std::string, std::string>> told_;
};

}  // namespace tessera::emulator
