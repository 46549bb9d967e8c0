// Ranks over NCCL that are processes: when one is stopped while they connect, the others name it.
// The stand-in for NCCL connects only threads of one process, so these ranks never finish
// connecting.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <thread>

#include "base/error.h"
#include "cuda/comm/nccl_ranks.h"
#include "support/expect_parts.h"
#include "support/processes.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;

// Checked in a separate process: forked processes would not have the GPU's threads.
std::string missing_nccl(int ranks) {
  Processes process(1, [ranks](int, std::atomic<int>&) {
    const std::string missing = nccl_under_test(ranks).missing;
    if (!missing.empty()) throw Error(ErrorCode::configuration, missing);
  });
  return process.wait(60s).front().message;
}

TEST(NcclStop, AStoppedProcessIsNamedSoonByAllOthers) {
  if (const std::string missing = missing_nccl(3); !missing.empty()) GTEST_SKIP() << missing;
  const int port = free_port();
  Processes processes(3, [port](int rank, std::atomic<int>& progress) {
    const NcclUnderTest nccl = nccl_under_test(3);
    comm::ConnectOptions options{.standstill_timeout = 800ms};
    options.device = nccl_device(rank);
    comm::World world = world_of(rank, 3, port);
    world.run_id = "nccl stop test";  // one for all processes
    progress = 1;
    (void)comm::connect_nccl_with(*nccl.functions, world, options);
  });
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(processes.wait_for_progress(rank, 1));
  std::this_thread::sleep_for(500ms);  // they have met at the control plane by now
  processes.signal(1, SIGSTOP);
  for (const int rank : {0, 2}) EXPECT_TRUE(processes.wait_for_end(rank));
  const std::vector<Outcome> outcomes = processes.wait(0s);  // ends the stopped one
  for (const std::size_t rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].exit_code, static_cast<int>(ErrorCode::rank_failed));
    expect_parts(outcomes[rank].message,
                 {"rank 1 (pid ", "has given no sign of life for 0.8 s", "its last call was"});
  }
}

}  // namespace
}  // namespace tessera::testing
