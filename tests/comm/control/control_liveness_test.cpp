// Liveness over the control plane: all other ranks name a rank that was stopped or makes no
// progress, also the rank that runs the hub; a rank that computes is not blamed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/control/bootstrap.h"
#include "comm/watch/busy.h"
#include "support/expect_parts.h"
#include "support/free_port.h"
#include "support/processes.h"

namespace tessera::comm::control {
namespace {

using namespace std::chrono_literals;
using testing::compute_for;
using testing::expect_parts;
using testing::Outcome;
using testing::Processes;

constexpr std::chrono::milliseconds limit = 800ms;

// Connects and calls fn with the group of all ranks.
void join(int rank, int size, int port, const std::function<void(HubGroup&)>& fn) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.master_port = port;
  world.run_id = "control liveness test";
  const ControlPlane plane = connect_control_plane(world, {30s, 60s, limit});
  std::vector<std::int32_t> members;
  for (int member = 0; member < size; ++member) members.push_back(member);
  HubGroup group(plane.control, members, 1, "world");
  fn(group);
}

Call step_call(std::uint64_t step) {
  return {Op::barrier, {.step = step, .unit = 2, .phase = Phase::backward}};
}

void expect_a_stopped_rank_is_named(int stopped, const std::vector<const char*>& parts) {
  const int port = testing::free_port();
  Processes processes(3, [port](int rank, std::atomic<int>& progress) {
    join(rank, 3, port, [&](HubGroup& world) {
      for (std::uint64_t step = 1;; ++step) {
        (void)world.exchange(step_call(step), {});
        progress = static_cast<int>(step);
        std::this_thread::sleep_for(1ms);
      }
    });
  });
  ASSERT_TRUE(processes.wait_for_progress(stopped, 40));
  processes.signal(stopped, SIGSTOP);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == stopped) continue;
    EXPECT_TRUE(processes.wait_for_end(rank));
  }
  const std::vector<Outcome> outcomes = processes.wait(0s);  // ends the stopped one
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == stopped) continue;
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCode::rank_failed)) << outcome.message;
    expect_parts(outcome.message, {"rank " + std::to_string(stopped) + " (pid " +
                                   std::to_string(processes.pid(stopped)) + " on "});
    expect_parts(outcome.message, {"has given no sign of life for 0.8 s", "unit 2, backward",
                                   "the last 32 collectives of each rank: on 'world' step "});
    for (const char* part : parts) expect_parts(outcome.message, {part});
  }
}

TEST(ControlLiveness, AStoppedRankIsNamedByAllOthers) {
  expect_a_stopped_rank_is_named(1, {"its last call was barrier (step ", "rank 0, 2 only: step "});
}

TEST(ControlLiveness, TheStoppedRankWithTheHubIsNamedByAllOthers) {
  expect_a_stopped_rank_is_named(0, {});
}

// Each rank's failure, "" for none.
std::vector<std::string> run_threads(int size, const std::function<void(HubGroup&)>& fn) {
  const int port = testing::free_port();
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        join(rank, size, port, fn);
      } catch (const Error& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();  // joins
  return failures;
}

// Rank 2 does not reach a call on the device; the others continue to a call that needs answers.
TEST(ControlLiveness, ABlockedRankThatSkipsACallIsNamed) {
  std::latch ended(2);
  const auto failures = run_threads(3, [&](HubGroup& world) {
    (void)world.exchange(step_call(1), {});
    if (world.rank() == 2) {
      ended.wait();
      return;
    }
    try {
      world.announce(step_call(2));
      (void)world.exchange(step_call(3), {});
    } catch (const Error&) {
      ended.count_down();
      throw;
    }
  });
  for (const int rank : {0, 1}) {
    expect_parts(failures[static_cast<std::size_t>(rank)],
                 {"rank 2 (pid ", "has stood still for 0.8 s", "waits for a lock or another thread",
                  "its last call was barrier (step 1,", "waits for it in barrier (step 2,",
                  "rank 0-1 only: step 2", "OutsideWait"});
  }
}

// Rank 0 waits for its device, rank 1 in a call that rank 0 will not reach: both wait, and the
// error does not blame only one of them.
TEST(ControlLiveness, RanksThatWaitForEachOthersDeviceAndMessagesAreNamed) {
  std::latch ended(1);
  const auto failures = run_threads(2, [&](HubGroup& world) {
    HubGroup other = world.split(0, world.rank(), "other");
    if (world.rank() == 0) {
      world.announce(step_call(2));
      ended.wait();
      // Each rank learns of the other's failure separately.
      for (int look = 0; look < 1000; ++look) {
        world.control().check(step_call(2));
        std::this_thread::sleep_for(10ms);
      }
      return;
    }
    try {
      (void)other.exchange(step_call(3), {});
    } catch (const Error&) {
      ended.count_down();
      throw;
    }
  });
  for (const std::string& failure : failures) {
    expect_parts(failure, {"all ranks wait for one another: rank 0 (pid ", "step 2", "on 'world'",
                           "rank 1 (pid ", "step 3", "on 'other'"});
  }
}

TEST(ControlLiveness, ARankThatComputesOrReportsItsWaitIsNotBlamed) {
  const int port = testing::free_port();
  Processes processes(3, [port](int rank, std::atomic<int>&) {
    join(rank, 3, port, [](HubGroup& world) {
      (void)world.exchange(step_call(1), {});
      if (world.rank() == 1) compute_for(3 * limit);
      world.announce(step_call(2));
      if (world.rank() == 2) {
        world.control().watch().note(Activity::outside_wait_begins);
        std::this_thread::sleep_for(5 * limit);
        world.control().watch().note(Activity::outside_wait_ends);
      }
      (void)world.exchange(step_call(3), {});
    });
  });
  for (const Outcome& outcome : processes.wait(30s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

TEST(ControlLiveness, AJobThatIsStoppedAsAWholeContinues) {
  const int port = testing::free_port();
  Processes processes(2, [port](int rank, std::atomic<int>& progress) {
    join(rank, 2, port, [&](HubGroup& world) {
      for (std::uint64_t step = 1; step < 400; ++step) {
        (void)world.exchange(step_call(step), {});
        progress = static_cast<int>(step);
        std::this_thread::sleep_for(1ms);
      }
    });
  });
  ASSERT_TRUE(processes.wait_for_progress(1, 10));
  for (const int rank : {0, 1}) processes.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(2 * limit);
  for (const int rank : {0, 1}) processes.signal(rank, SIGCONT);
  for (const Outcome& outcome : processes.wait(30s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

}  // namespace
}  // namespace tessera::comm::control
