// Ranks that are processes: the collectives, and the errors of the survivors when a rank dies,
// hangs or misbehaves.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/shared/join/handshake.h"
#include "comm/shared/process_world.h"
#include "comm/world.h"
#include "tests/comm/shared/collective_cases.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::Outcome;
using tessera::testing::Processes;
using tessera::testing::world_of_process;
using Ranks = cases::Ranks;
using RankBody = std::function<void(const Ranks&, std::atomic<int>& progress)>;

constexpr int rank_failed = static_cast<int>(ErrorCode::rank_failed);
constexpr int configuration = static_cast<int>(ErrorCode::configuration);

// Starts `size` ranks that connect and run the body.
Processes start(int size, const RankBody& body, ConnectOptions options = {}) {
  return Processes(size, [=](int rank, std::atomic<int>& progress) {
    set_compute_threads(1);
    body(connect(world_of_process(rank, size), options), progress);
  });
}

void expect_success(Processes& processes) {
  for (const Outcome& outcome : processes.wait(30s)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_FALSE(outcome.timed_out);
  }
}

void expect_failure(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_code, code) << outcome.message;
  EXPECT_EQ(outcome.signal, 0);
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.message.find(part), std::string::npos)
        << "'" << part << "' is not in: " << outcome.message;
  }
}

class ShmRanks : public ::testing::TestWithParam<int> {
 protected:
  static void run(const std::function<void(const Ranks&)>& fn) {
    Processes processes =
        start(GetParam(), [&](const Ranks& ranks, std::atomic<int>&) { fn(ranks); });
    expect_success(processes);
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, ShmRanks, ::testing::Range(1, 5));

TEST_P(ShmRanks, KnowThemselves) {
  run([](const Ranks& ranks) {
    EXPECT_EQ(ranks->size(), GetParam());
    EXPECT_EQ(ranks->backend(), GetParam() == 1 ? "local" : "shm");
    for (int i = 0; i < 100; ++i) ranks->barrier();
  });
}

TEST_P(ShmRanks, AllGather) {
  run([](const Ranks& ranks) {
    for (const std::size_t share : {0, 1, 7, 4096, 50'000, 700'000}) {
      cases::check_all_gather(ranks, share, 3);
    }
    cases::check_gathered_ranges(ranks);
  });
}

TEST_P(ShmRanks, ReductionsAreTheTree) {
  run([](const Ranks& ranks) { cases::check_all_reductions(ranks, 43); });
}

TEST_P(ShmRanks, LargeAllReduceTakesSeveralChunks) {
  run([](const Ranks& ranks) { cases::check_reductions(ranks, 200'001, {.scale = 0.5f}, 3); });
}

TEST_P(ShmRanks, AllToAll) {
  run(cases::check_all_to_all);
}

TEST_P(ShmRanks, PointToPoint) {
  run(cases::check_point_to_point);
}
TEST_P(ShmRanks, Messages) {
  run(cases::check_messages);
}
TEST_P(ShmRanks, Groups) {
  run(cases::check_groups);
}
TEST_P(ShmRanks, DuplicatesOverlap) {
  run(cases::check_duplicates_overlap);
}
TEST_P(ShmRanks, SlowReaderIsWaitedFor) {
  run(cases::check_slow_reader_is_waited_for);
}

// Tessera's files in /dev/shm, apart from the temporary folders of tests that run at the same time.
std::vector<std::string> shared_memory_files() {
  std::vector<std::string> names = tessera::testing::files_in("/dev/shm");
  std::erase_if(names, [](const std::string& name) {
    return !name.starts_with("tessera") || name.starts_with("tessera-test-");
  });
  return names;
}

TEST(ShmMemory, FreedBuffersGoBackToTheSystemAndDescriptorsAreClosed) {
  const auto shm_before = shared_memory_files();
  Processes processes(2, [](int rank, std::atomic<int>&) {
    const auto before = tessera::testing::files_in("/proc/self/fd");
    {
      const Ranks ranks = connect(world_of_process(rank, 2));
      for (int i = 0; i < 16; ++i) {  // 16 times 32 MiB: a leak would be noticed
        auto buffer = ranks->allocate("temporary", std::size_t{16} << 20, Sharing::per_rank);
        buffer->data()[12345] = std::byte{1};
        ranks->split(rank, 0, "temporary")->barrier();
      }
      std::size_t blocks = 0;
      for (const std::string& name : tessera::testing::files_in("/proc/self/fd")) {
        std::error_code gone;
        const auto link = std::filesystem::read_symlink("/proc/self/fd/" + name, gone).string();
        if (link.find("memfd:tessera") == std::string::npos) continue;
        struct stat status {};
        EXPECT_EQ(stat(("/proc/self/fd/" + name).c_str(), &status), 0);
        blocks = static_cast<std::size_t>(status.st_blocks);
      }
      ranks->barrier();
      EXPECT_GT(blocks, 0u);
      EXPECT_LT(blocks * 512, std::size_t{80} << 20);
    }
    EXPECT_EQ(tessera::testing::files_in("/proc/self/fd"), before);
  });
  expect_success(processes);
  EXPECT_EQ(shared_memory_files(), shm_before);
}

TEST(ShmMemory, NoRoomIsAnErrorOfAllRanksAndTheJobContinues) {
  Processes processes = start(2, [](const Ranks& ranks, std::atomic<int>&) {
    try {
      ranks->allocate("huge", std::size_t{1} << 50, Sharing::one_copy);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
    }
    cases::check_all_gather(ranks, 10, 2);
  });
  expect_success(processes);
}

// Kills rank 2 of four when it has reached a point, and checks the others' errors.
void kill_rank_2(const RankBody& body, const std::vector<std::string>& parts) {
  const auto shm_before = shared_memory_files();
  Processes processes = start(4, body);
  ASSERT_TRUE(processes.wait_for_progress(2, 1));
  std::this_thread::sleep_for(30ms);
  processes.signal(2, SIGKILL);
  const std::string name = "rank 2 (pid " + std::to_string(processes.pid(2)) + ") died";
  const std::vector<Outcome> outcomes = processes.wait(10s);
  for (const int rank : {0, 1, 3}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    expect_failure(outcome, rank_failed, parts);
    expect_failure(outcome, rank_failed, {name});
  }
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  EXPECT_EQ(shared_memory_files(), shm_before);
}

TEST(ShmFailures, KilledBeforeACollective) {
  kill_rank_2(
      [](const Ranks& ranks, std::atomic<int>& progress) {
        auto buffer = ranks->allocate("weights", 4096, Sharing::one_copy);
        ranks->acquire(*buffer);
        if (ranks->rank() == 2) {
          progress = 1;
          std::this_thread::sleep_for(60s);
        }
        ranks->all_gather(*buffer, buffer->bytes(),
                          {.step = 12, .unit = 3, .phase = Phase::forward});
      },
      {"all_gather of 'weights'", "4096 bytes", "step 12, unit 3, forward"});
}

TEST(ShmFailures, KilledDuringCollectives) {
  kill_rank_2(
      [](const Ranks& ranks, std::atomic<int>& progress) {
        auto buffer = ranks->allocate("gradients", 4 << 20, Sharing::per_rank);
        std::vector<float> out(1 << 20);
        for (;;) {
          ranks->acquire(*buffer);
          ranks->all_reduce(*buffer, 1 << 20, out.data(), {}, {.step = 1});
          progress = 1;
        }
      },
      {"'gradients'"});
}

TEST(ShmFailures, KilledWhileAGroupWithoutItWorks) {
  kill_rank_2(
      [](const Ranks& ranks, std::atomic<int>& progress) {
        auto group = ranks->split(ranks->rank() == 2 ? 1 : 0, 0, "others");
        progress = 1;
        if (ranks->rank() == 2) std::this_thread::sleep_for(60s);
        if (group->rank() == 0) std::this_thread::sleep_for(300ms);
        ranks->barrier();
      },
      {"barrier"});
}

// A rank of a group waits for a rank that is blocked by a death elsewhere: all name the dead rank.
TEST(ShmFailures, ChainsOfFailuresNameTheFirst) {
  kill_rank_2(
      [](const Ranks& ranks, std::atomic<int>& progress) {
        auto left = ranks->split(ranks->rank() / 2, 0, "pair");
        progress = 1;
        if (ranks->rank() == 2) std::this_thread::sleep_for(60s);
        if (ranks->rank() == 3) left->barrier();
        if (ranks->rank() == 1) std::this_thread::sleep_for(500ms);
        if (ranks->rank() < 2) left->barrier();
        ranks->barrier();
      },
      {"barrier"});
}

TEST(ShmFailures, StoppedRankIsNamedAtTheDeadlineAndFencedOffLater) {
  Processes processes = start(3,
                              [](const Ranks& ranks, std::atomic<int>& progress) {
                                for (std::uint64_t step = 0;; ++step) {
                                  ranks->barrier({.step = step, .phase = Phase::optimizer});
                                  progress = 1;
                                }
                              },
                              {.collective_timeout = 500ms});
  ASSERT_TRUE(processes.wait_for_progress(1, 1));
  processes.signal(1, SIGSTOP);
  std::this_thread::sleep_for(900ms);
  processes.signal(1, SIGCONT);
  const std::string name = "rank 1 (pid " + std::to_string(processes.pid(1)) + ") did not come";
  for (const Outcome& outcome : processes.wait(5s)) {
    expect_failure(outcome, rank_failed, {name, "barrier", "optimizer", "0.5 s"});
  }
}

TEST(ShmFailures, MismatchNamesBothRanksAndCalls) {
  Processes processes = start(3, [](const Ranks& ranks, std::atomic<int>&) {
    if (ranks->rank() == 1) ranks->exchange("x", {.step = 4});
    ranks->barrier({.step = 4});
  });
  for (const Outcome& outcome : processes.wait(5s)) {
    expect_failure(outcome, rank_failed,
                   {"rank 0", "barrier", "rank 1", "exchange", "do not agree"});
  }
}

TEST(ShmFailures, AbortReachesAllRanks) {
  Processes processes = start(3, [](const Ranks& ranks, std::atomic<int>&) {
    auto group = ranks->split(ranks->rank() == 0 ? 0 : 1, 0, "some");
    if (ranks->rank() == 0) {
      std::this_thread::sleep_for(50ms);
      group->abort("no memory left on the device");
    }
    for (;;) (ranks->rank() == 1 ? ranks : ranks->rank() == 2 ? group : ranks)->barrier();
  });
  for (const Outcome& outcome : processes.wait(5s)) {
    expect_failure(outcome, rank_failed, {"rank 0", "gave up: no memory left on the device"});
  }
}

TEST(ShmFailures, RankThatFinishesEarlyIsNamed) {
  Processes processes = start(3, [](const Ranks& ranks, std::atomic<int>&) {
    ranks->barrier();
    if (ranks->rank() != 2) ranks->barrier({.step = 9});
  });
  const std::vector<Outcome> outcomes = processes.wait(5s);
  for (const int rank : {0, 1}) {
    expect_failure(outcomes[static_cast<std::size_t>(rank)], rank_failed,
                   {"rank 2", "has finished", "step 9"});
  }
  EXPECT_EQ(outcomes[2].exit_code, 0);
}

TEST(ShmFailures, ExceptionOfARankIsReportedAsSuch) {
  Processes processes = start(2, [](const Ranks& ranks, std::atomic<int>&) {
    ranks->barrier();
    if (ranks->rank() == 1) throw std::runtime_error("own trouble");
    ranks->barrier();
  });
  const std::vector<Outcome> outcomes = processes.wait(5s);
  expect_failure(outcomes[0], rank_failed, {"rank 1"});
  expect_failure(outcomes[1], Outcome::other_exception, {"own trouble"});
}

// ---- the rendezvous

TEST(ShmRendezvous, MissingRanksAreNamed) {
  Processes processes(4, [](int rank, std::atomic<int>&) {
    if (rank == 1 || rank == 3) return;
    connect(world_of_process(rank, 4), {.rendezvous_timeout = 400ms});
  });
  const std::vector<Outcome> outcomes = processes.wait(5s);
  for (const int rank : {0, 2}) {
    expect_failure(outcomes[static_cast<std::size_t>(rank)], rank_failed,
                   {"ranks 1, 3", "did not come", "0.4 s", "MASTER_PORT=29500"});
  }
}

TEST(ShmRendezvous, MissingRank0IsNamed) {
  Processes processes(2, [](int rank, std::atomic<int>&) {
    if (rank != 0) connect(world_of_process(rank, 2), {.rendezvous_timeout = 300ms});
  });
  expect_failure(processes.wait(5s)[1], rank_failed, {"rank 0 did not come", "MASTER_ADDR"});
}

TEST(ShmRendezvous, DuplicateRankIsRefused) {
  Processes processes(3, [](int index, std::atomic<int>&) {
    connect(world_of_process(index == 0 ? 0 : 1, 3), {.rendezvous_timeout = 5s});
  });
  for (const Outcome& outcome : processes.wait(8s)) {
    expect_failure(outcome, configuration, {"there are two ranks 1", "RANK=1"});
  }
}

TEST(ShmRendezvous, DuplicateRank0IsRefused) {
  Processes processes(2, [](int index, std::atomic<int>& progress) {
    if (index == 1) std::this_thread::sleep_for(100ms);
    progress = 1;
    connect(world_of_process(0, 2), {.rendezvous_timeout = 500ms});
  });
  const std::vector<Outcome> outcomes = processes.wait(5s);
  expect_failure(outcomes[0], rank_failed, {"rank 1", "did not come"});
  expect_failure(outcomes[1], configuration, {"another rank 0", "MASTER_PORT"});
}

TEST(ShmRendezvous, DisagreementAboutTheWorldIsRefused) {
  Processes processes(2, [](int rank, std::atomic<int>&) {
    connect(world_of_process(rank, rank == 0 ? 2 : 3), {.rendezvous_timeout = 2s});
  });
  for (const Outcome& outcome : processes.wait(5s)) {
    expect_failure(outcome, configuration, {"rank 1", "WORLD_SIZE=3", "2"});
  }
}

TEST(ShmRendezvous, RanksOutsideTheWorldAreRefused) {
  try {
    connect({.rank = 2, .size = 2, .local_size = 2});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    EXPECT_NE(std::string(error.what()).find("RANK=2"), std::string::npos) << error.what();
  }
}

// Other programs connect to rank 0 during the rendezvous: garbage, silence, and a closed
// connection.
TEST(ShmRendezvous, OtherProgramsAreRejected) {
  Processes processes(3, [](int index, std::atomic<int>&) {
    if (index == 1) {
      std::this_thread::sleep_for(300ms);
      connect(world_of_process(1, 2), {.rendezvous_timeout = 5s});
      return;
    }
    if (index == 0) {
      connect(world_of_process(0, 2), {.rendezvous_timeout = 5s});
      return;
    }
    std::this_thread::sleep_for(100ms);
    const auto meeting = meeting_address(world_of_process(0, 2));
    const auto call = [&] {
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
      EXPECT_EQ(
          ::connect(socket, reinterpret_cast<const sockaddr*>(&meeting.address), meeting.length),
          0);
      return socket;
    };
    const int silent = call();
    const int hanging_up = call();
    close(hanging_up);
    const int garbage = call();
    const std::string text = "GET / HTTP/1.1 and more that is not a hello..";
    EXPECT_EQ(send(garbage, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    const int short_one = call();
    EXPECT_EQ(send(short_one, "x", 1, 0), 1);
    std::this_thread::sleep_for(400ms);
    close(silent);
    close(garbage);
    close(short_one);
  });
  expect_success(processes);
}

TEST(ShmRendezvous, AnotherVersionIsRefused) {
  Processes processes(2, [](int index, std::atomic<int>&) {
    if (index == 0) connect(world_of_process(0, 2), {.rendezvous_timeout = 5s});
    std::this_thread::sleep_for(100ms);
    const auto meeting = meeting_address(world_of_process(0, 2));
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    ASSERT_EQ(
        ::connect(socket, reinterpret_cast<const sockaddr*>(&meeting.address), meeting.length), 0);
    Hello hello = hello_of(world_of_process(1, 2));
    std::snprintf(hello.library, sizeof(hello.library), "9.9.9");
    ASSERT_EQ(send(socket, &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
    const Answer answer = receive_answer(socket);
    EXPECT_NE(answer.refusal.find("9.9.9"), std::string::npos) << answer.refusal;
  });
  const std::vector<Outcome> outcomes = processes.wait(5s);
  expect_failure(outcomes[0], configuration, {"9.9.9", "all ranks need the same"});
  EXPECT_EQ(outcomes[1].exit_code, 0) << outcomes[1].message;
}

TEST(ShmRendezvous, ARankThatDiesDuringTheRendezvousIsNamed) {
  Processes processes(3, [](int rank, std::atomic<int>& progress) {
    progress = 1;
    if (rank == 2) std::this_thread::sleep_for(60s);
    connect(world_of_process(rank, 3), {.rendezvous_timeout = 8s});
  });
  ASSERT_TRUE(processes.wait_for_progress(1, 1));
  std::this_thread::sleep_for(200ms);
  processes.signal(1, SIGKILL);
  std::this_thread::sleep_for(300ms);
  processes.signal(2, SIGKILL);
  const std::vector<Outcome> outcomes = processes.wait(5s);
  expect_failure(
      outcomes[0], rank_failed,
      {"rank 1 (pid " + std::to_string(processes.pid(1)) + ") died", "found each other"});
}

// Two jobs with the same port at the same time, which their run ids keep apart; and one job after
// another.
TEST(ShmRendezvous, JobsDoNotMix) {
  Processes processes(4, [](int index, std::atomic<int>&) {
    for (int round = 0; round < 20; ++round) {
      World world = world_of_process(index % 2, 2);
      world.run_id += index / 2 == 0 ? "a" : "b";
      const Ranks ranks = connect(world, {.rendezvous_timeout = 5s});
      const std::string job = std::to_string(index / 2) + "." + std::to_string(round);
      EXPECT_EQ(ranks->exchange(job), (std::vector<std::string>{job, job}));
    }
  });
  expect_success(processes);
}

}  // namespace
}  // namespace tessera::comm
