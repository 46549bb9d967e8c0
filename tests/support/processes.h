// Runs a function in processes of its own, so that tests can kill and stop ranks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tessera::testing {

// How a process ended.
struct Outcome {
  int exit_code = -1;      // 0; an Error's code; other_exception; failed_expectation
  int signal = 0;          // the signal that killed it
  bool timed_out = false;  // it was still running at the end of the wait
  std::string message;     // the exception's message
  std::chrono::steady_clock::time_point ended;

  static constexpr int other_exception = 100;
  static constexpr int failed_expectation = 101;
};

// Forks processes; use it while the test program has one thread. Processes that still run at the
// end are killed.
class Processes {
 public:
  // `progress` is a number that the parent sees: wait_for_progress().
  using Body = std::function<void(int index, std::atomic<int>& progress)>;

  Processes(int count, const Body& body);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  [[nodiscard]] pid_t pid(int index) const {
    return children_[static_cast<std::size_t>(index)].pid;
  }
  void signal(int index, int number) const;
  // Waits until the process has set its progress to `value` or more; false after a minute.
  [[nodiscard]] bool wait_for_progress(int index, int value) const;
  // Waits until the process has ended; false after a minute. A test that has to wake or end another
  // process afterwards need not guess how long this takes.
  [[nodiscard]] bool wait_for_end(int index);
  // Waits for all, and kills those that take longer.
  std::vector<Outcome> wait(std::chrono::milliseconds limit);

 private:
  struct Child {
    pid_t pid = 0;
    int message_pipe = -1;
    bool running = true;
    Outcome outcome{};
  };
  // Notes how the child ended if it has, or kills it first.
  static void look_at(Child& child, bool kill_it);

  std::vector<Child> children_;
  std::atomic<int>* progress_ = nullptr;  // shared memory, one for each child
};

// Names of the files in a folder of /proc or /dev, sorted; for /proc/self/fd without the descriptor
// that reads the folder.
std::vector<std::string> files_in(const std::string& folder);

}  // namespace tessera::testing
