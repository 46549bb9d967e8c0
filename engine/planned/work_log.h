// What a planned step would have its device and its host do: kernels, copies, waits, in the order
// of the program, each in a lane. Lanes run side by side, what is in one runs in its order.
//
// Lane 0 is the rank's own thread, and on CPUs the compute stream. A planned queue is a lane. An
// entry begins no earlier than when lane 0 had come to its call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/planned/kernel_work.h"

namespace tessera {

// Everything that a lane was given before; entries are numbered over the log's whole life.
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
    outside,     // of whoever logged it, under number `outside`
    wait,        // for `until`
  };
  Kind kind = Kind::wait;
  bool again = false;     // of a second run that recomputes
  bool backward = false;  // of a backward
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

  // Since the last begin().
  [[nodiscard]] const std::vector<LoggedWork>& entries() const { return entries_; }
  struct Lane {
    std::string name;
    std::uint64_t first;  // entries before the last begin()
    std::uint64_t end;    // and until now
  };
  [[nodiscard]] const std::vector<Lane>& lanes() const { return lanes_; }
  // Forgets what was logged; points in it have been reached.
  void begin();

 private:
  std::vector<LoggedWork> entries_;
  std::vector<Lane> lanes_;
};

// Where the calling thread's planned queues log; null: nowhere.
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
