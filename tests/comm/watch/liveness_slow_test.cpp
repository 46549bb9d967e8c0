// By the clock on the wall, with the limits that users have: a rank that was stopped is named by
// all others within 6 seconds; one that computes for longer than its limit is left alone.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

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

TEST(LivenessSlow, AStoppedProcessIsNamedByAllOthersWithin6Seconds) {
  Processes processes(4, [](int rank, std::atomic<int>& progress) {
    const Ranks ranks = connect(world_of_process(rank, 4));
    for (std::uint64_t step = 1;; ++step) {
      ranks->barrier({.step = step});
      progress = static_cast<int>(step);
    }
  });
  ASSERT_TRUE(processes.wait_for_progress(3, 40));
  const auto stopped = steady_clock::now();
  processes.signal(0, SIGSTOP);
  for (const int rank : {1, 2, 3}) EXPECT_TRUE(processes.wait_for_end(rank));
  const std::vector<Outcome> outcomes = processes.wait(0s);  // ends the stopped one
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    expect_parts(outcomes[rank].message, {"rank 0 (pid " + std::to_string(processes.pid(0)) +
                                          ") has given no sign of life"});
    EXPECT_LT(outcomes[rank].ended - stopped, 6s);
  }
}

void expect_computing_is_left_alone(std::chrono::seconds time, const ConnectOptions& options) {
  Processes processes(3, [&](int rank, std::atomic<int>&) {
    const Ranks ranks = connect(world_of_process(rank, 3), options);
    ranks->barrier();
    if (rank == 1) compute_for(time);
    ranks->barrier();
  });
  run_local(
      3,
      [&](const Ranks& ranks) {
        ranks->barrier();
        if (ranks->rank() == 1) compute_for(time);
        ranks->barrier();
      },
      options);
  for (const Outcome& outcome : processes.wait(time + 30s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

TEST(LivenessSlow, ARankThatComputesFor15TimesTheLimitIsLeftAlone) {
  expect_computing_is_left_alone(6s, {.standstill_timeout = 400ms});
}

// With the limit that users have, 5 s.
TEST(LivenessSlow, ARankThatComputesForTwiceTheUsersLimitIsLeftAlone) {
  expect_computing_is_left_alone(10s, {});
}

}  // namespace
}  // namespace tessera::comm
