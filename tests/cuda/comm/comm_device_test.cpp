// Ranks that share a GPU: every collective gives the CPU's bits, in the order of the ranks' queues;
// mismatches, failures and memory behave as on the CPU.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "cuda/comm/comm_testing.h"
#include "cuda/device_under_test.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"

namespace tessera::comm {
namespace {

using cases::Ranks;
using testing::Bytes;
using testing::gather_ranges;
using testing::gather_several_times;
using testing::Output;
using testing::Program;
using testing::reduce;
using testing::Results;

constexpr Device gpu = Device::cuda();

Results results_of(int ranks, Device device, const Program& program) {
  Results results;
  std::mutex mutex;
  run_local(ranks,
            [&](const Ranks& communicator) {
              EXPECT_EQ(communicator->device(), device);
              std::vector<Bytes> seen;
              program(communicator, seen);
              const std::lock_guard lock(mutex);
              results[communicator->rank()] = std::move(seen);
            },
            {.device = device});
  return results;
}

void expect_the_cpus_bits(int ranks, const Program& program) {
  const testing::AccessChecking access_checking;
  const Results expected = results_of(ranks, Device::cpu(), program);
  EXPECT_FALSE(expected.at(0).empty());
  EXPECT_TRUE(results_of(ranks, gpu, program) == expected) << ranks << " ranks";
}

TEST(CommDevice, GathersInOrder) {
  for (const int ranks : {1, 2, 3}) {
    expect_the_cpus_bits(ranks, gather_several_times);
    expect_the_cpus_bits(ranks, gather_ranges);
  }
}

TEST(CommDevice, SumsInTheFixedOrder) {
  for (const int ranks : {2, 3, 4}) {
    expect_the_cpus_bits(ranks, [](const Ranks& communicator, std::vector<Bytes>& seen) {
      reduce(communicator, 517, {.scale = 0.25f}, seen);
      reduce(communicator, 517, {.in_dtype = bfloat16, .scale = 0.5f, .accumulate = true}, seen);
      reduce(communicator, 260, {.in_dtype = bfloat16, .out_dtype = bfloat16}, seen);
      reduce(communicator, 100, {.in_dtype = float16, .group = 2}, seen);
    });
  }
}

// Large enough for several rounds through the shared sums, whose two halves alternate.
TEST(CommDevice, LargeSumsGoInPieces) {
  expect_the_cpus_bits(3, [](const Ranks& communicator, std::vector<Bytes>& seen) {
    reduce(communicator, (std::int64_t{2} << 20) + 12'345, {.scale = 0.5f}, seen);
  });
}

TEST(CommDevice, GroupsAndChannels) {
  expect_the_cpus_bits(4, [](const Ranks& communicator, std::vector<Bytes>& seen) {
    const auto half = communicator->split(communicator->rank() % 2, -communicator->rank(), "half");
    reduce(half, 65, {}, seen);
    const auto again = half->duplicate("again");
    gather_several_times(again, seen);
  });
}

std::string failure_of(int ranks, const std::function<void(const Ranks&)>& fn) {
  try {
    run_local(ranks, fn, {.device = gpu});
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no failure";
}

TEST(CommDevice, MismatchesNameBothRanks) {
  const std::string text = failure_of(2, [](const Ranks& ranks) {
    const auto buffer = ranks->allocate("pooled", 256, Sharing::one_copy);
    ranks->acquire(*buffer);
    ranks->all_gather(*buffer, ranks->rank() == 0 ? 64 : 128, {});
  });
  for (const char* part : {"do not agree", "rank 0", "64 bytes", "rank 1", "128 bytes"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST(CommDevice, AnAbortEndsEveryRank) {
  const std::string text = failure_of(3, [](const Ranks& ranks) {
    const auto buffer = ranks->allocate("gradients", 4096, Sharing::per_rank);
    const Output out(gpu, Bytes(4096));
    for (int round = 0;; ++round) {
      ranks->acquire(*buffer);
      if (ranks->rank() == 1 && round == 2) throw std::runtime_error("rank 1's own trouble");
      ranks->all_reduce(*buffer, 1024, out.data(), {}, {});
    }
  });
  EXPECT_EQ(text, "rank 1's own trouble");
}

// One after the other: the emulated GPU has only 1 GiB.
TEST(CommDevice, DroppedBuffersGiveTheirMemoryBack) {
  run_local(2,
            [](const Ranks& ranks) {
              const std::size_t bytes = std::size_t{128} << 20;
              const std::size_t before = ranks->held_bytes();
              for (int i = 0; i < 6; ++i) {
                const auto buffer = ranks->allocate("temporary", bytes, Sharing::per_rank);
                EXPECT_EQ(ranks->held_bytes(), before + bytes);  // the one before is gone
                ranks->acquire(*buffer);
                current_queue(gpu).zero(buffer->data(), 4096);  // runs past the buffer
              }
              EXPECT_EQ(ranks->held_bytes(), before);
            },
            {.device = gpu});
}

TEST(CommDevice, MemoryThatIsNotAvailableIsRefused) {
  run_local(2,
            [](const Ranks& ranks) {
              try {
                ranks->allocate("huge", std::size_t{1} << 40, Sharing::one_copy);
                ADD_FAILURE() << "no error";
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
              }
              std::vector<Bytes> seen;
              gather_several_times(ranks, seen);  // still works
            },
            {.device = gpu});
}

}  // namespace
}  // namespace tessera::comm
