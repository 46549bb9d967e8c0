// Ranks that wait for one another in different channels get an error that lists the waiting ranks
// and their calls; while one of them computes they wait.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
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
using tessera::testing::expect_parts;
using tessera::testing::Outcome;
using tessera::testing::Processes;
using tessera::testing::world_of_process;
using Ranks = std::shared_ptr<Communicator>;

constexpr ConnectOptions impatient{.standstill_timeout = 400ms};

std::string failure_of_impatient_ranks(int ranks, const std::function<void(const Ranks&)>& fn) {
  std::string message = "no failure";
  try {
    run_local(ranks, fn, impatient);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::rank_failed);
    message = error.what();
  }
  return message;
}

// Rank 0 enters one channel, the others another.
void part_ways(const Ranks& ranks) {
  auto left = ranks->duplicate("left");
  auto right = ranks->duplicate("right");
  if (ranks->rank() == 0) {
    left->barrier({.step = 7, .unit = 1, .phase = Phase::forward});
  } else {
    right->exchange("hello", {.step = 7, .unit = 2, .phase = Phase::backward});
  }
}

TEST(Standstill, RanksInDifferentChannelsAreNamedWithTheirCalls) {
  for (const int ranks : {2, 5}) {
    const std::string text = failure_of_impatient_ranks(ranks, part_ways);
    expect_parts(text, {"all ranks wait for one another", "0.4 s", "rank 0", "'left'",
                        "barrier (step 7, unit 1, forward)", "rank 1", "'right'",
                        "exchange (step 7, unit 2, backward)"});
    expect_parts(text, {"rank " + std::to_string(ranks - 1) + " ("});
  }
}

TEST(Standstill, WorkersThatTheirRanksWaitForAreNamed) {
  const std::string text = failure_of_impatient_ranks(2, [](const Ranks& ranks) {
    auto first = ranks->duplicate("first");
    auto second = ranks->duplicate("second");
    std::exception_ptr failure;
    std::jthread worker([&] {
      const WorkerScope scope(*ranks);
      try {
        (ranks->rank() == 0 ? first : second)->barrier();
      } catch (const Error&) {
        failure = std::current_exception();
      }
    });
    {
      const RankWaits waits(*ranks);
      worker.join();
    }
    std::rethrow_exception(failure);
  });
  expect_parts(text, {"all ranks wait for one another", "'first'", "'second'"});
}

// Rank 0 tries to write a buffer that rank 1 still reads.
TEST(Standstill, AcquireIsNamedWithItsPurpose) {
  const std::string text = failure_of_impatient_ranks(2, [](const Ranks& ranks) {
    auto channel = ranks->duplicate("channel");
    auto buffer = ranks->allocate("weights", 64, Sharing::one_copy);
    ranks->acquire(*buffer);
    ranks->all_gather(*buffer, 64, {});
    if (ranks->rank() == 0) {
      buffer->release();
      ranks->acquire(*buffer, {.step = 7, .unit = 3, .phase = Phase::backward});
    } else {
      channel->barrier();
    }
  });
  expect_parts(text, {"acquire of 'weights'", "step 7, unit 3, backward"});
}

TEST(Standstill, ProcessesAreNamedByTheirNumbers) {
  Processes processes(3, [](int rank, std::atomic<int>&) {
    part_ways(connect(world_of_process(rank, 3), impatient));
  });
  const std::vector<Outcome> outcomes = processes.wait(20s);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCode::rank_failed)) << outcome.message;
    expect_parts(outcome.message, {"all ranks wait for one another", "'left'", "'right'"});
    for (int rank = 0; rank < 3; ++rank) {
      expect_parts(outcome.message, {"(pid " + std::to_string(processes.pid(rank)) + ")"});
    }
  }
}

// The workers of each rank wait for those of the other, for far longer than the limit, while the
// ranks' own threads do work that will end the wait.
TEST(Standstill, LongWorkIsNotADeadlock) {
  run_local(
      2,
      [](const Ranks& ranks) {
        auto first = ranks->duplicate("first");
        auto second = ranks->duplicate("second");
        const bool even = ranks->rank() == 0;
        std::jthread worker([&] {
          const WorkerScope scope(*ranks);
          (even ? first : second)->barrier();
        });
        testing::compute_for(1500ms);
        (even ? second : first)->barrier();
      },
      impatient);
}

TEST(Standstill, OneWorkingRankIsWaitedFor) {
  run_local(
      3,
      [](const Ranks& ranks) {
        if (ranks->rank() == 1) testing::compute_for(1500ms);
        ranks->barrier();
      },
      impatient);
}

}  // namespace
}  // namespace tessera::comm
