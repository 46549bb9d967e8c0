// The control plane over TCP: messages, groups, and ranks that differ, die, hang or are missing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/error.h"
#include "comm/control/bootstrap.h"
#include "comm/control/mpi_broadcast.h"
#include "comm/watch/busy.h"
#include "support/free_port.h"

namespace tessera::comm::control {
namespace {

using namespace std::chrono_literals;

World world_of(int rank, int size, int port) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.master_port = port;
  world.run_id = "control test";
  return world;
}

using Ranks = std::function<void(HubGroup&)>;

// Each rank's failure, "" for none.
std::vector<std::string> run(int size, const Ranks& fn, std::chrono::milliseconds collective = 60s,
                             std::chrono::milliseconds standstill = 5s) {
  const int port = testing::free_port();
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ControlPlane plane =
            connect_control_plane(world_of(rank, size, port), {30s, collective, standstill});
        std::vector<std::int32_t> members;
        for (int member = 0; member < size; ++member) members.push_back(member);
        HubGroup world(plane.control, members, 1, "world");
        fn(world);
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();  // joins
  return failures;
}

const Call call_of(Op op, std::uint64_t step = 0) {
  return {op, {.step = step}};
}

void expect_says(const std::string& failure, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(failure.find(part), std::string::npos) << part << " is not in: " << failure;
  }
}

TEST(Control, MessagesOfAnySizeInRankOrder) {
  const auto failures = run(3, [](HubGroup& world) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{3} << 20}) {
      const auto all = world.exchange(call_of(Op::exchange),
                                      std::string(size, static_cast<char>('a' + world.rank())));
      ASSERT_EQ(all.size(), 3u);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(all[rank], std::string(size, static_cast<char>('a' + rank)));
      }
    }
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(Control, GroupsByColourInTheOrderOfTheirKeys) {
  const auto failures = run(4, [](HubGroup& world) {
    HubGroup half = world.split(world.rank() % 2, -world.rank(), "half");
    EXPECT_EQ(half.size(), 2);
    EXPECT_EQ(half.rank(), world.rank() < 2 ? 1 : 0);
    const auto all = half.exchange(call_of(Op::exchange), std::to_string(world.rank()));
    EXPECT_EQ(all, world.rank() % 2 == 0 ? (std::vector<std::string>{"2", "0"})
                                         : (std::vector<std::string>{"3", "1"}));
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(Control, CallsThatDifferNameBothRanks) {
  const auto failures = run(2, [](HubGroup& world) {
    world.announce(call_of(world.rank() == 0 ? Op::all_gather : Op::reduce_scatter, 4));
    (void)world.exchange(call_of(Op::barrier), {});
  });
  for (const std::string& failure : failures) {
    expect_says(failure, {"different collectives on 'world'", "rank 0", "all_gather", "rank 1",
                          "reduce_scatter", "step 4"});
  }
}

TEST(Control, ARankThatDiesIsNamed) {
  const auto failures = run(3, [](HubGroup& world) {
    (void)world.exchange(call_of(Op::barrier), {});
    if (world.rank() == 2) throw std::runtime_error("dies");  // its connection ends without a leave
    (void)world.exchange(call_of(Op::barrier, 9), {});
  });
  expect_says(failures[0], {"rank 2", "ended without leaving", "step 9"});
  expect_says(failures[1], {"rank 2", "ended without leaving"});
}

TEST(Control, ARankThatLeavesWhileOthersWaitIsNamed) {
  const auto failures = run(2, [](HubGroup& world) {
    if (world.rank() == 0) (void)world.exchange(call_of(Op::barrier, 3), {});
  });
  expect_says(failures[0], {"rank 1", "has left", "barrier", "step 3"});
  EXPECT_EQ(failures[1], "");
}

TEST(Control, ARankThatMissesACallIsNamed) {
  const auto failures = run(
      2,
      [](HubGroup& world) {
        if (world.rank() == 1) testing::compute_for(3s);
        (void)world.exchange(call_of(Op::barrier, 2), {});
      },
      1s);
  expect_says(failures[0], {"rank 1", "did not come to barrier", "within 1 s", "step 2"});
}

// No call times out for minutes: the deadlock detection notices that all ranks wait.
TEST(Control, RanksThatWaitForOneAnotherAreNamed) {
  const auto failures = run(
      2,
      [](HubGroup& world) {
        HubGroup one = world.split(0, world.rank(), "one");
        HubGroup other = world.split(0, world.rank(), "other");
        (void)(world.rank() == 0 ? one : other).exchange(call_of(Op::barrier), {});
      },
      300s);
  for (const std::string& failure : failures) {
    expect_says(failure, {"wait for one another", "rank 0", "'one'", "rank 1", "'other'"});
  }
}

// Each rank sends one frame per collective.
TEST(Control, FramesOfCallsAreSmall) {
  Call call(Op::all_gather, {.step = 3, .unit = 2});
  call.set_name("a buffer with a name of many characters");
  SentNames sent;
  KnownNames known;
  const std::string first = encode({.call = call, .message = ""}, sent);
  const std::string later = encode({.call = call, .message = ""}, sent);
  EXPECT_LE(later.size(), 120u);
  EXPECT_LT(later.size(), first.size());
  EXPECT_EQ(decode_post(first, known).call, call);
  EXPECT_EQ(decode_post(later, known).call, call);
}

TEST(Control, ADuplicateRankIsRefused) {
  const int port = testing::free_port();
  std::vector<std::string> failures(3);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      try {
        // Rank 1 connects twice, and rank 2 never: the connected ranks get the error at the
        // deadline.
        (void)connect_control_plane(world_of(i == 0 ? 0 : 1, 3, port), {2s, 60s});
      } catch (const Error& error) {
        failures[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  threads.clear();
  expect_says(failures[0], {"rank(s) 2 of 3 did not come"});
  const bool first_refused = failures[1].find("two ranks 1") != std::string::npos;
  expect_says(failures[first_refused ? 1 : 2], {"there are two ranks 1"});
  expect_says(failures[first_refused ? 2 : 1], {"rank(s) 2 of 3 did not come"});
}

TEST(Control, TheAddressTravelsByFile) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("tessera-bootstrap-" + std::to_string(getpid()));
  setenv("TESSERA_BOOTSTRAP", ("file:" + path.string()).c_str(), 1);
  const auto failures = run(
      3, [](HubGroup& world) { EXPECT_EQ(world.exchange(call_of(Op::exchange), "x").size(), 3u); });
  unsetenv("TESSERA_BOOTSTRAP");
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Control, AnUnknownMethodIsRefused) {
  setenv("TESSERA_BOOTSTRAP", "pigeon", 1);
  const auto failures = run(1, [](HubGroup&) {});
  unsetenv("TESSERA_BOOTSTRAP");
  expect_says(failures[0], {"TESSERA_BOOTSTRAP is 'pigeon'", "tcp, mpi or file:PATH"});
}

}  // namespace
}  // namespace tessera::comm::control
