// Errors of the ranks on several hosts when one of them dies, stops, diverges or leaves: every
// other rank names it within seconds. The others wait for a slow rank.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/nodes/nodes_world.h"
#include "comm/watch/busy.h"
#include "comm/world.h"
#include "tests/comm/shared/collective_cases.h"
#include "tests/support/memory_limit.h"
#include "tests/support/processes.h"
#include "tests/support/sanitizers.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::Hosts;
using tessera::testing::job_port;
using tessera::testing::Outcome;
using tessera::testing::Processes;
using tessera::testing::world_on_hosts;
using Ranks = cases::Ranks;
using RankBody = std::function<void(const Ranks&, std::atomic<int>& progress)>;

constexpr int failed = static_cast<int>(ErrorCode::rank_failed);

Processes start(const Hosts& hosts, const RankBody& body, ConnectOptions options = {}) {
  if (options.standstill_timeout.count() == 0) options.standstill_timeout = 1s;
  const int port = job_port();
  return Processes(tessera::testing::ranks_of(hosts), [=](int rank, std::atomic<int>& progress) {
    set_compute_threads(1);
    body(connect(world_on_hosts(hosts, rank, port), options), progress);
  });
}

void expect_named(const Outcome& outcome, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_code, failed) << outcome.message;
  EXPECT_FALSE(outcome.timed_out);
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.message.find(part), std::string::npos)
        << "'" << part << "' is not in: " << outcome.message;
  }
}

// Gathers and sums without end.
void work(const Ranks& ranks, std::atomic<int>& progress) {
  auto gathered = ranks->allocate("weights", std::size_t{1} << 20, Sharing::one_copy);
  auto gradients = ranks->allocate("gradients", std::size_t{1} << 20, Sharing::per_rank);
  std::vector<float> out(1 << 18);
  for (std::uint64_t step = 0;; ++step) {
    ranks->acquire(*gathered);
    ranks->all_gather(*gathered, gathered->bytes(), {.step = step, .phase = Phase::forward});
    gathered->release();
    ranks->acquire(*gradients);
    ranks->all_reduce(*gradients, 1 << 18, out.data(), {}, {.step = step, .phase = Phase::reduce});
    progress = 1;
  }
}

void signal_rank_3(int signal, const std::string& what) {
  Processes processes = start({2, 2}, work);
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_for_progress(rank, 1));
  processes.signal(3, signal);
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(processes.wait_for_end(rank));
  const std::string name = "rank 3 (pid " + std::to_string(processes.pid(3));
  const std::vector<Outcome> outcomes = processes.wait(0s);  // ends the stopped one
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    expect_named(outcome, {name, what});
  }
}

TEST(HostsFailures, ARankThatIsKilledIsNamedByAll) {
  signal_rank_3(SIGKILL, "");
}

TEST(HostsFailures, ARankThatIsStoppedIsNamedByAll) {
  signal_rank_3(SIGSTOP, "no sign of life");
}

// Rank 0 has the hub of the control plane.
TEST(HostsFailures, RankZeroThatIsStoppedIsNamedByAll) {
  Processes processes = start({2, 2}, work);
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_for_progress(rank, 1));
  processes.signal(0, SIGSTOP);
  for (const int rank : {1, 2, 3}) EXPECT_TRUE(processes.wait_for_end(rank));
  const std::vector<Outcome> outcomes = processes.wait(0s);  // ends the stopped one
  for (std::size_t rank = 1; rank < 4; ++rank) {
    expect_named(outcomes[rank], {"rank 0 (pid " + std::to_string(processes.pid(0))});
  }
}

// An exception of a rank ends the other ranks' call at once, not only when the rank ends.
TEST(HostsFailures, ARankWithoutMemoryEndsTheCallOfAll) {
  if (tessera::testing::address_sanitizer || tessera::testing::thread_sanitizer) {
    GTEST_SKIP() << "a sanitizer's own memory is larger than the limit";
  }
  // That rank 1 was told, in memory that the processes share: rank 2 waits for it.
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* told = new (shared) std::atomic<bool>(false);
  const auto body = [told](const Ranks& ranks, std::atomic<int>&) {
    auto gradients = ranks->allocate("gradients", std::size_t{1} << 20, Sharing::per_rank);
    std::vector<float> out(1 << 16);
    ranks->acquire(*gradients);
    const std::vector<ReducedRange> mine{{ranks->rank() << 16, 1 << 16, out.data()}};
    try {
      if (ranks->rank() == 2) tessera::testing::limit_memory(64 << 10);
      ranks->reduce_scatter(*gradients, mine, {}, {.step = 7});
    } catch (const std::bad_alloc&) {
      for (int look = 0; !*told; ++look) {
        if (look == 1500) _exit(Outcome::failed_expectation);
        std::this_thread::sleep_for(10ms);
      }
      throw;
    } catch (const Error&) {
      if (ranks->rank() == 1) *told = true;
      throw;
    }
  };
  Processes processes = start({1, 1, 1}, body, {.standstill_timeout = 30s});
  const std::vector<Outcome> outcomes = processes.wait(30s);
  munmap(shared, 4096);
  EXPECT_EQ(outcomes[2].message, "std::bad_alloc");
  for (const int rank : {0, 1}) {  // rank 0 ends last: its hub gives the others time
    expect_named(outcomes[static_cast<std::size_t>(rank)],
                 {"rank 2 (pid", "reduce_scatter of 'gradients'", "bad_alloc"});
  }
}

TEST(HostsFailures, CallsThatDifferAreBothNamed) {
  Processes processes = start({1, 2}, [](const Ranks& ranks, std::atomic<int>&) {
    auto buffer = ranks->allocate("weights", 6000, Sharing::one_copy);
    ranks->acquire(*buffer);
    ranks->all_gather(*buffer, ranks->rank() == 2 ? 3000u : 6000u, {.step = 7});
    ranks->barrier();
  });
  for (const Outcome& outcome : processes.wait(10s)) {
    expect_named(outcome, {"3000 bytes", "6000 bytes", "step 7"});
  }
}

TEST(HostsFailures, ARankThatMissesACollectiveIsNamed) {
  Processes processes = start({2, 1}, [](const Ranks& ranks, std::atomic<int>&) {
    auto buffer = ranks->allocate("weights", 6000, Sharing::one_copy);
    ranks->acquire(*buffer);
    if (ranks->rank() == 2) std::this_thread::sleep_for(60s);
    ranks->all_gather(*buffer, 6000, {.step = 7});
  });
  // Rank 0 would give the sleeper ten seconds to hear of it.
  EXPECT_TRUE(processes.wait_for_end(1));
  processes.signal(2, SIGKILL);
  const std::vector<Outcome> outcomes = processes.wait(60s);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    expect_named(outcomes[rank], {"rank 2 (pid", "stood still", "all_gather of 'weights'"});
  }
}

TEST(HostsFailures, ARankThatSendsSomethingElseIsNamed) {
  const RankBody body = [](const Ranks& ranks, std::atomic<int>&) {
    std::vector<std::byte> memory(300);
    if (ranks->rank() == 0) {
      ranks->send(memory.data(), 200, 1, {.step = 7});
      ranks->barrier();
    } else {
      ranks->receive(memory.data(), 300, 0, {.step = 7});
    }
  };
  Processes processes = start({1, 1}, body, {.standstill_timeout = 10s});
  for (const Outcome& outcome : processes.wait(15s)) {
    expect_named(outcome, {"rank 1", "300 bytes", "step 7", "rank 0", "sent something else"});
  }
}

// Only the two ranks know of a message, so the time limit ends the wait.
TEST(HostsFailures, AMissingMessageEndsWithTheTimeLimit) {
  const RankBody body = [](const Ranks& ranks, std::atomic<int>&) {
    std::byte memory{};
    ranks->receive(&memory, 1, 1 - ranks->rank(), {.step = 7});
  };
  Processes processes = start({1, 1}, body, {.collective_timeout = 1s});
  for (const Outcome& outcome : processes.wait(15s)) {
    expect_named(outcome, {"rank 0", "rank 1", "step 7", "TESSERA_COMM_TIMEOUT"});
  }
}

TEST(HostsFailures, AbortReachesAllRanks) {
  Processes processes = start({2, 2}, [](const Ranks& ranks, std::atomic<int>& progress) {
    auto host = ranks->split_blocks(2, "host");
    if (ranks->rank() == 3) {
      std::this_thread::sleep_for(50ms);
      host->abort("no memory left");
    }
    if (ranks->rank() == 2) host->barrier();
    work(ranks, progress);
  });
  for (const Outcome& outcome : processes.wait(6s)) {
    expect_named(outcome, {"rank 3", "gave up: no memory left"});
  }
}

TEST(HostsFailures, ARankThatComputesIsWaitedFor) {
  const RankBody body = [](const Ranks& ranks, std::atomic<int>&) {
    for (int late = 0; late < 4; late += 3) {
      if (ranks->rank() == late) tessera::testing::compute_for(1500ms);
      cases::check_all_gather(ranks, 1000, 1);
      if (ranks->rank() == late) tessera::testing::compute_for(1500ms);
      cases::check_reductions(ranks, 1000, {}, 1);
    }
  };
  Processes processes = start({2, 2}, body, {.standstill_timeout = 600ms});
  for (const Outcome& outcome : processes.wait(60s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

TEST(HostsFailures, MissingRanksAreNamed) {
  const int port = job_port();
  Processes processes(4, [=](int rank, std::atomic<int>&) {
    if (rank == 3) return;
    connect(world_on_hosts({2, 2}, rank, port), {.rendezvous_timeout = 500ms});
  });
  const std::vector<Outcome> outcomes = processes.wait(20s);
  for (std::size_t rank = 0; rank < 3; ++rank) expect_named(outcomes[rank], {"rank(s) 3 of 4"});
}

}  // namespace
}  // namespace tessera::comm
