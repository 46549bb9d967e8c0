// When ranks wait for a rank that was stopped or makes no progress, all of them soon name it and
// its last call; a rank that computes or waits for a disk is not blamed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/shared/process_world.h"
#include "comm/watch/busy.h"
#include "comm/world.h"
#include "support/expect_parts.h"
#include "support/processes.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using tessera::testing::compute_for;
using tessera::testing::expect_parts;
using tessera::testing::Outcome;
using tessera::testing::Processes;
using tessera::testing::world_of_process;
using Ranks = std::shared_ptr<Communicator>;

constexpr std::chrono::milliseconds limit = 600ms;
constexpr ConnectOptions patient{.collective_timeout = 60s, .standstill_timeout = limit};

void steps(const Ranks& ranks, std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t step = first; step <= last; ++step) {
    ranks->barrier({.step = step, .unit = 2, .phase = Phase::backward});
  }
}

// Ranks in an endless loop, until one of them is disturbed.
void loop(int rank, int size, std::atomic<int>& progress) {
  const Ranks ranks = connect(world_of_process(rank, size), patient);
  for (std::uint64_t step = 1;; ++step) {
    steps(ranks, step, step);
    std::this_thread::sleep_for(1ms);
    progress = static_cast<int>(step);
  }
}

// How soon, by the clock on the wall, liveness_slow_test measures: these tests run on busy
// machines. Each message has the limit that ended the wait, and no other limit is as short.
void expect_all_name(const std::vector<Outcome>& outcomes, const std::string& name) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCode::rank_failed)) << outcome.message;
    expect_parts(outcome.message, {name, "its last call was barrier (step ", "unit 2, backward",
                                   "TESSERA_STANDSTILL_TIMEOUT", "the last 32 collectives"});
  }
}

// One of two ranks that work for a while, whatever disturbs them meanwhile.
void take_many_steps(int rank, std::atomic<int>& progress) {
  const Ranks ranks = connect(world_of_process(rank, 2), patient);
  for (std::uint64_t step = 1; step <= 300; ++step) {
    steps(ranks, step, step);
    progress = static_cast<int>(step);
    std::this_thread::sleep_for(1ms);
  }
}

TEST(Liveness, AStoppedProcessIsNamedByAllOthers) {
  Processes processes(3, [](int rank, std::atomic<int>& progress) { loop(rank, 3, progress); });
  ASSERT_TRUE(processes.wait_for_progress(1, 40));
  processes.signal(1, SIGSTOP);
  for (const int rank : {0, 2}) EXPECT_TRUE(processes.wait_for_end(rank));
  processes.signal(1, SIGCONT);  // too late: it gets the error as well
  std::vector<Outcome> outcomes = processes.wait(20s);
  const std::string name = "rank 1 (pid " + std::to_string(processes.pid(1)) +
                           ") has given no sign of life for 0.6 s: its process was stopped by a "
                           "signal (SIGSTOP)";
  expect_parts(outcomes[1].message, {name});
  outcomes.erase(outcomes.begin() + 1);
  expect_all_name(outcomes, name);
}

TEST(Liveness, AShortStopIsIgnored) {
  Processes processes(2, take_many_steps);
  ASSERT_TRUE(processes.wait_for_progress(1, 10));
  processes.signal(1, SIGSTOP);
  std::this_thread::sleep_for(limit / 2);
  processes.signal(1, SIGCONT);
  for (const Outcome& outcome : processes.wait(20s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

// As with Ctrl-Z and fg, or when a machine sleeps.
TEST(Liveness, AJobThatIsStoppedAsAWholeContinues) {
  Processes processes(2, take_many_steps);
  ASSERT_TRUE(processes.wait_for_progress(1, 10));
  for (const int rank : {0, 1}) processes.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(2 * limit);
  processes.signal(0, SIGCONT);
  std::this_thread::sleep_for(limit / 4);
  processes.signal(1, SIGCONT);
  for (const Outcome& outcome : processes.wait(20s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

TEST(Liveness, AProcessInADebuggerIsWaitedFor) {
  Processes processes(2, take_many_steps);
  ASSERT_TRUE(processes.wait_for_progress(1, 10));
  std::vector<pid_t> threads;
  for (const std::string& name :
       testing::files_in("/proc/" + std::to_string(processes.pid(1)) + "/task")) {
    threads.push_back(std::stoi(name));
  }
  for (const pid_t thread : threads) {
    if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) GTEST_SKIP() << "no ptrace here";
    ASSERT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(thread, nullptr, __WALL), thread);
  }
  std::this_thread::sleep_for(2 * limit);
  for (const pid_t thread : threads) {
    ASSERT_EQ(ptrace(PTRACE_DETACH, thread, nullptr, nullptr), 0);
  }
  for (const Outcome& outcome : processes.wait(20s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

// Touches a page that is never filled.
void touch_a_page_that_does_not_come(int faults) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register range{};
  range.range = {.start = reinterpret_cast<std::uintptr_t>(page), .len = 4096};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(faults, UFFDIO_REGISTER, &range) == 0) *static_cast<volatile char*>(page) = 1;
}

int open_faults() {
  const auto faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  if (faults >= 0 && ioctl(faults, UFFDIO_API, &api) != 0) return -1;
  return faults;
}

enum class Block { lock, pipe, sleep, page_fault, workers };

void block(Block how, const Ranks& ranks) {
  switch (how) {
    case Block::lock: {
      std::mutex mutex;
      std::condition_variable never;
      std::unique_lock lock(mutex);
      never.wait(lock, [] { return false; });
      return;
    }
    case Block::pipe: {
      int ends[2];
      ASSERT_EQ(pipe(ends), 0);
      char byte = 0;
      ASSERT_GE(read(ends[0], &byte, 1), 0);
      return;
    }
    case Block::sleep:
      std::this_thread::sleep_for(1h);
      return;
    case Block::page_fault:
      touch_a_page_that_does_not_come(open_faults());
      return;
    case Block::workers: {  // the rank's own thread waits for the workers, which never finish
      std::latch never(1);
      std::jthread worker([&] {
        const WorkerScope scope(*ranks);
        never.wait();
      });
      const RankWaits waits(*ranks);
      worker.join();
    }
  }
}

void expect_block_is_named(Block how, const char* what) {
  Processes processes(3, [how](int rank, std::atomic<int>& progress) {
    const Ranks ranks = connect(world_of_process(rank, 3), patient);
    steps(ranks, 1, 5);
    progress = 1;
    if (rank == 2) block(how, ranks);
    try {
      steps(ranks, 6, 6);
    } catch (const Error&) {
      progress = 2;
      throw;
    }
  });
  ASSERT_TRUE(processes.wait_for_progress(2, 1));
  for (const int rank : {0, 1}) ASSERT_TRUE(processes.wait_for_progress(rank, 2));
  processes.signal(2, SIGKILL);
  std::vector<Outcome> outcomes = processes.wait(20s);
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  outcomes.pop_back();
  expect_all_name(
      outcomes, "rank 2 (pid " + std::to_string(processes.pid(2)) + ") has stood still for 0.6 s");
  expect_parts(outcomes[0].message, {what, "step 5", "rank 0-1 only: step 6"});
}

TEST(Liveness, ARankInADeadlockIsNamed) {
  expect_block_is_named(Block::lock, "waits for a lock or another thread");
}

TEST(Liveness, ARankThatWaitsForInputIsNamed) {
  expect_block_is_named(Block::pipe, "waits for input on descriptor");
}

TEST(Liveness, ARankThatSleepsIsNamed) {
  expect_block_is_named(Block::sleep, "its own thread sleeps");
}

TEST(Liveness, ARankWhoseWorkersMakeNoProgressIsNamed) {
  expect_block_is_named(Block::workers, "waits for a lock or another thread");
}

TEST(Liveness, ARankInAPageFaultThatNeverReturnsIsNamed) {
  const int faults = open_faults();
  if (faults < 0) GTEST_SKIP() << "no userfaultfd here";
  close(faults);
  expect_block_is_named(Block::page_fault, "hangs in a page fault");
}

// Ranks that are threads: the blocked one waits until the others have ended.
TEST(Liveness, ABlockedThreadIsNamed) {
  std::vector<std::string> messages(3);
  std::latch ended(2);
  EXPECT_THROW(run_local(
                   3,
                   [&](const Ranks& ranks) {
                     steps(ranks, 1, 5);
                     if (ranks->rank() == 2) {
                       ended.wait();
                       return;
                     }
                     try {
                       steps(ranks, 6, 6);
                     } catch (const Error& error) {
                       messages[static_cast<std::size_t>(ranks->rank())] = error.what();
                       ended.count_down();
                       throw;
                     }
                     ended.count_down();
                   },
                   patient),
               Error);
  for (const int rank : {0, 1}) {
    expect_parts(messages[static_cast<std::size_t>(rank)],
                 {"rank 2 (a thread of pid ", "has stood still for 0.6 s",
                  "its last call was barrier (step 5, unit 2, backward) on 'world'"});
  }
}

// One rank is blocked, and another computes for longer than the limit: the computing rank is not
// blamed.
TEST(Liveness, TheBlockedThreadIsNamedAndNotTheComputingOne) {
  std::latch ended(1);
  std::string message;
  EXPECT_THROW(run_local(
                   3,
                   [&](const Ranks& ranks) {
                     if (ranks->rank() == 2) ended.wait();
                     if (ranks->rank() == 1) compute_for(3 * limit);
                     try {
                       ranks->barrier();
                     } catch (const Error& error) {
                       if (ranks->rank() == 0) {
                         message = error.what();
                         ended.count_down();
                       }
                       throw;
                     }
                   },
                   patient),
               Error);
  expect_parts(message, {"rank 2 (", "has stood still"});
  EXPECT_EQ(message.find("rank 1 ("), std::string::npos) << message;
}

void expect_left_alone(const std::function<void(const Ranks&)>& work) {
  Processes processes(2, [&](int rank, std::atomic<int>&) {
    const Ranks ranks = connect(world_of_process(rank, 2), patient);
    ranks->barrier();
    if (rank == 1) work(ranks);
    ranks->barrier();
  });
  run_local(
      2,
      [&](const Ranks& ranks) {
        ranks->barrier();
        if (ranks->rank() == 1) work(ranks);
        ranks->barrier();
      },
      patient);
  for (const Outcome& outcome : processes.wait(30s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

TEST(Liveness, ARankThatComputesIsNotBlamed) {
  expect_left_alone([](const Ranks&) { compute_for(3 * limit); });
}

// Like the threads of a matrix product, which are not announced.
TEST(Liveness, ARankWhoseOtherThreadsComputeIsNotBlamed) {
  expect_left_alone([](const Ranks&) {
    std::jthread other([] { compute_for(3 * limit); });
    other.join();
  });
}

TEST(Liveness, ARankThatWaitsForAFileIsNotBlamed) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("tessera-liveness-" + std::to_string(getpid()));
  expect_left_alone([&](const Ranks& ranks) {
    // Opening the pipe blocks in the kernel, like opening a file of a slow server.
    const std::string pipe = path.string() + std::string(ranks->backend());
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    std::jthread server([&] {
      std::this_thread::sleep_for(2 * limit);
      close(open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
    });
    close(open(pipe.c_str(), O_RDONLY | O_CLOEXEC));
    std::filesystem::remove(pipe);
  });
}

TEST(Liveness, ARankThatReportsAnOutsideWaitIsNotBlamed) {
  expect_left_alone([](const Ranks& ranks) {
    const OutsideWait wait(*ranks);
    std::this_thread::sleep_for(2 * limit);
  });
}

// Many more runnable threads than cores, the ranks' threads among them.
TEST(Liveness, ALoadedMachineCausesNoFalseAlarm) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<bool> over = false;
  Processes processes(3, [&](int rank, std::atomic<int>&) {
    std::vector<std::jthread> others;
    for (unsigned i = 0; i < 8 * cores; ++i) {
      others.emplace_back([&over] {
        while (!over) compute_for(1ms);
      });
    }
    const Ranks ranks = connect(world_of_process(rank, 3), patient);
    const auto end = steady_clock::now() + 3 * limit;
    std::uint64_t step = 0;
    for (std::string more = "yes"; more == "yes"; ++step) {
      if (static_cast<int>(step) % 3 == rank) compute_for(20ms);
      more = ranks->broadcast(steady_clock::now() < end ? "yes" : "no", 0);
    }
    over = true;
  });
  for (const Outcome& outcome : processes.wait(60s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

}  // namespace
}  // namespace tessera::comm
