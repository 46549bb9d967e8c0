// Which threads of this process move. A thread moves when it gets processor time or waits for it,
// when it reads pages of a file into memory, and while it waits for a file's disk.
//
// The kernel's counters show it from outside, so no thread has to report it: not a thread of a
// matrix product, of a data loader or of a library.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>

namespace tessera::comm {

class ThreadActivity {
 public:
  // Looks at all threads of this process except the watchers.
  void look();

  // True when the thread moved between the last two looks, or began between them.
  [[nodiscard]] bool moved(pid_t thread) const;
  [[nodiscard]] bool any_moved_but(const std::set<pid_t>& left_out) const;

 private:
  struct Sample {
    std::int64_t computed = 0;  // nanoseconds on a processor
    std::int64_t queued = 0;    // waiting for one
    std::int64_t turns = 0;     // on a processor
    std::uint64_t page_reads = 0;
    bool runnable = false;
    bool moved = true;
    std::uint64_t look = 0;
  };
  void look_at(pid_t thread, std::chrono::nanoseconds step);
  [[nodiscard]] static bool computes(const Sample& before, const Sample& now,
                                     std::chrono::nanoseconds step);

  std::map<pid_t, Sample> samples_;
  std::uint64_t looks_ = 0;
  std::chrono::steady_clock::time_point looked_at_{};
};

// Starts a thread that watches ranks: it belongs to no rank and receives no signal of the process.
// Its name is watcher_prefix and `name`, at most 15 characters.
inline constexpr std::string_view watcher_prefix = "tessera:";
std::thread start_watcher(std::string_view name, std::function<void()> body);

// Nanoseconds for which a thread of this process was on a processor; negative when the thread does
// not exist.
std::int64_t processor_time_of(pid_t thread);

// The smallest part of the time that counts as moving; polling costs less.
inline constexpr std::int64_t moving_share = 50;  // one 50th

// A description such as "waits for a lock or another thread (futex)".
std::string describe_wait(pid_t thread);

// The state of another process of this node: 'T' for stopped, 't' for stopped by a debugger, 'D'
// for hanging in the kernel; ' ' when it is not visible.
char process_state(pid_t process);
// True when a debugger or tracer is attached to it.
bool is_traced(pid_t process);

}  // namespace tessera::comm
