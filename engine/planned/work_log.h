// The work that a planned step would give its device and host: kernels, copies and waits, in
// program order, each in a lane. Lanes run in parallel; the entries of one lane run in order.
//
// Lane 0 is the rank's own thread, and on CPUs the compute stream. Each planned queue is a lane. An
// entry begins no earlier than the time at which lane 0 reaches its call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/planned/kernel_work.h"

namespace tessera {

// All entries of a lane before this point. Entries are numbered over the log's whole life.
struct LoggedPoint {
  std::uint32_t lane = 0;
  std::uint64_t end = 0;  // entries of the lane
};

struct LoggedWork {
  enum class Kind : std::uint8_t {
    kernel,
    copy,        // within one memory: `bytes`
    to_device,   // from the host's memory
    to_host,     //
    file_read,   //
    file_write,  //
    outside,     // defined by the code that logged it, under number `outside`
    wait,        // for `until`
  };
  Kind kind = Kind::wait;
  bool again = false;     // part of a second run that recomputes
  bool backward = false;  // part of a backward
  std::uint32_t lane = 0;
  std::uint64_t issued = 0;  // entries of lane 0 before the call
  KernelWork kernel = {};
  double bytes = 0;
  std::uint64_t outside = 0;
  LoggedPoint until = {};
};

class WorkLog {
 public:
  static constexpr std::uint32_t host = 0;
  WorkLog() : lanes_{{"host", 0, 0}} {}

  std::uint32_t add_lane(std::string_view name);
  void add(LoggedWork work);
  void wait(std::uint32_t lane, LoggedPoint until);
  [[nodiscard]] LoggedPoint end_of(std::uint32_t lane) const;

  // Entries since the last begin().
  [[nodiscard]] const std::vector<LoggedWork>& entries() const { return entries_; }
  struct Lane {
    std::string name;
    std::uint64_t first;  // entries before the last begin()
    std::uint64_t end;    // entries until now
  };
  [[nodiscard]] const std::vector<Lane>& lanes() const { return lanes_; }
  // Clears the log; all points in it count as reached.
  void begin();

 private:
  std::vector<LoggedWork> entries_;
  std::vector<Lane> lanes_;
};

// The log of the calling thread's planned queues; null: none.
WorkLog* work_log();

class WorkLogGuard {
 public:
  explicit WorkLogGuard(WorkLog* log);
  ~WorkLogGuard();
  WorkLogGuard(const WorkLogGuard&) = delete;
  WorkLogGuard& operator=(const WorkLogGuard&) = delete;

 private:
  WorkLog* previous_;
};

}  // namespace tessera
