// Processes that handle a signal, as opposed to those that only block it while they start a
// process.
#include "launch/listening_processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace tessera::launcher {
namespace {

enum class Way { nothing, handles, ignores, blocks, blocks_for_a_moment };

// The child's behaviour after it has written a byte, until it is killed.
[[noreturn]] void live(Way way, int ready) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  if (way == Way::handles) ::signal(SIGUSR1, [](int) {});
  if (way == Way::ignores) ::signal(SIGUSR1, SIG_IGN);
  if (way == Way::blocks || way == Way::blocks_for_a_moment)
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
  if (::write(ready, "r", 1) != 1) ::_exit(1);
  if (way == Way::blocks_for_a_moment) {
    const timespec moment{0, 20'000'000};
    ::nanosleep(&moment, nullptr);
    ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  }
  for (;;) ::pause();
}

// True if processes_that_bear() finds a child with this behaviour.
bool is_found(Way way) {
  std::array<int, 2> ready{};
  EXPECT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    live(way, ready[1]);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  const bool found = processes_that_bear(SIGUSR1, child) == std::vector<pid_t>{child};
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int end : ready) ::close(end);
  return found;
}

TEST(ListeningProcesses, HandleIgnoreOrKeepBlocking) {
  EXPECT_TRUE(is_found(Way::handles));
  EXPECT_TRUE(is_found(Way::ignores));
  EXPECT_TRUE(is_found(Way::blocks));
}

TEST(ListeningProcesses, DoNotIncludeProcessesThatTheSignalWouldEnd) {
  EXPECT_FALSE(is_found(Way::nothing));
  EXPECT_FALSE(is_found(Way::blocks_for_a_moment));
}

}  // namespace
}  // namespace tessera::launcher
