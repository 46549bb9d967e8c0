// Admission to the control plane; unauthenticated connections to its port do not affect the ranks.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/control/bootstrap.h"
#include "comm/control/door.h"
#include "comm/control/door_testing.h"
#include "support/expect_parts.h"

namespace tessera::comm::control {
namespace {

using namespace doors;
using tessera::testing::expect_parts;

TEST(ControlDoor, ACallerWithTheKeyIsAdmitted) {
  for (const JobKey& key : {JobKey(), the_key()}) {
    OpenDoor door(key);
    EXPECT_EQ(call(door.port(), key), "the host");
    door.close();
    EXPECT_EQ(door.introductions, std::vector<std::string>{"a caller"});
    EXPECT_TRUE(door.lines.empty());
  }
}

TEST(ControlDoor, ACallerWithAnotherKeyOrNoneIsNotAdmitted) {
  OpenDoor door(the_key());
  expect_parts(call(door.port(), another_key()),
               {"not ours: ", "does not know this job's key (it has another)", "TESSERA_JOB_KEY"});
  expect_parts(call(door.port(), JobKey()), {"refused: rank 0 requires the job's key"});
  door.close();
  EXPECT_TRUE(door.introductions.empty());
  ASSERT_EQ(door.lines.size(), 1u);
  expect_parts(door.lines[0], {"the test turned a connection from 127.0.0.1 away", "job's key"});
}

// A rank must not send its data to another process that has taken rank 0's port.
TEST(ControlDoor, AHostWithoutTheKeyIsNotTrusted) {
  OpenDoor door((JobKey()));
  expect_parts(call(door.port(), the_key()), {"not ours: ", "it has none"});
  door.close();
  EXPECT_TRUE(door.introductions.empty());
}

TEST(ControlDoor, ACallerOfAnotherJobIsRejectedSilently) {
  OpenDoor door(the_key());
  expect_parts(call(door.port(), the_key(), "another run"),
               {"not ours: ", "closed the connection"});
  EXPECT_EQ(call(door.port(), the_key()), "the host");
  door.close();
  EXPECT_TRUE(door.lines.empty());
}

// The most connections of `wanted` for which this process may open files.
std::size_t affordable(std::size_t wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 2 * wanted);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  constexpr std::size_t others = 300;
  return std::min<std::size_t>(wanted, limit.rlim_cur - others);
}

TEST(ControlDoor, ABurstOfSilentConnectionsDelaysNoRank) {
  for (const JobKey& key : {JobKey(), the_key()}) {
    OpenDoor door(key);
    std::vector<FileDescriptor> silent;
    const std::size_t count = affordable(4096);
    for (std::size_t i = 0; i < count; ++i) silent.push_back(connection_to(door.port()));
    const auto begin = steady_clock::now();
    EXPECT_EQ(call(door.port(), key), "the host");
    EXPECT_LT(steady_clock::now() - begin, 2s);
    door.close();
    EXPECT_EQ(door.most_strangers, CrowdLimits{}.of_one_address);
    ASSERT_EQ(door.lines.size(), 1u);
    expect_parts(door.lines[0], {"it said nothing while many connections waited"});
  }
}

// The newest is not refused, and those that have spoken stay.
TEST(ControlDoor, TheOldestSilentStrangerMakesRoom) {
  OpenDoor door(the_key(), {.all = 8, .of_one_address = 8, .patience_in_crowd = 30s}, 30s);
  const FileDescriptor speaks = connection_to(door.port());
  send_all(speaks.get(), knock(this_protocol, meeting_of("test", "run", {})));
  ASSERT_TRUE(receive_frame(speaks.get()).has_value());
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 7; ++i) silent.push_back(connection_to(door.port()));
  while (door.most_strangers < 8) std::this_thread::sleep_for(1ms);
  const FileDescriptor newest = connection_to(door.port());
  EXPECT_LT(until_hung_up(silent[0].get()), 20s);
  for (const int socket : {speaks.get(), silent[1].get(), newest.get()}) {
    char byte = 0;
    EXPECT_LT(::recv(socket, &byte, 1, MSG_DONTWAIT), 0);  // open
  }
}

TEST(ControlDoor, ACrowdHasLessTime) {
  OpenDoor door(the_key(), {.all = 8, .of_one_address = 8});
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(connection_to(door.port()));
  const auto begin = steady_clock::now();
  EXPECT_LT(until_hung_up(silent[0].get()), 3s);
  EXPECT_GT(steady_clock::now() - begin, 500ms);
  door.close();
  ASSERT_EQ(door.lines.size(), 1u);
  expect_parts(door.lines[0], {"it did not identify itself within 1 s"});
}

TEST(ControlDoor, OneAddressDoesNotTakeThePlacesOfAnother) {
  OpenDoor door(the_key(), {.all = 8, .of_one_address = 6, .patience_in_crowd = 30s}, 30s);
  const auto connection_from = [&](const char* address) {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    inet_pton(AF_INET, address, &at.sin_addr);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    at.sin_port = htons(static_cast<std::uint16_t>(door.port()));
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    return socket;
  };
  const FileDescriptor other = connection_from("127.0.0.3");
  std::vector<FileDescriptor> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(connection_from("127.0.0.2"));
  EXPECT_EQ(call(door.port(), the_key()), "the host");
  char byte = 0;
  EXPECT_LT(::recv(other.get(), &byte, 1, MSG_DONTWAIT), 0);  // open
  door.close();
  EXPECT_LE(door.most_strangers, 8u);
}

TEST(ControlDoor, AllRanksOfANodeMayComeAtOnce) {
  constexpr int ranks = 64;
  OpenDoor door(the_key(),
                {.all = 64 + ranks, .of_one_address = 16 + ranks, .patience_in_crowd = 30s}, 30s);
  std::atomic<int> admitted = 0;
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < ranks; ++i) {
      callers.emplace_back([&] { admitted += call(door.port(), the_key()) == "the host" ? 1 : 0; });
    }
  }
  EXPECT_EQ(admitted, ranks);
  door.close();
  EXPECT_TRUE(door.lines.empty());
}

World door_world(int rank, int size, int port) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.master_port = port;
  world.run_id = "run";
  return world;
}

// Three ranks that exchange messages until `disturb` has returned. Returns their failures, "" for
// none.
std::vector<std::string> run_disturbed(const std::function<void(int port)>& disturb) {
  const int port = port_of(listen_on(0, true)->get());
  std::atomic<bool> done = false;
  std::atomic<int> rounds = 0;
  std::vector<std::string> failures(3);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const ControlPlane plane =
            connect_control_plane(door_world(rank, 3, port), {30s, 60s, 2s}, the_key());
        HubGroup group(plane.control, {0, 1, 2}, 1, "world");
        for (std::uint64_t step = 1;; ++step) {
          const std::string mine = rank == 0 && done ? "end" : "";
          const auto all = group.exchange(Call(Op::exchange, {.step = step}), mine);
          if (rank == 0) ++rounds;
          if (all[0] == "end") return;
          std::this_thread::sleep_for(1ms);
        }
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  while (rounds == 0) std::this_thread::sleep_for(1ms);
  const int before = rounds;
  disturb(port);
  // The ranks continue after the disturbance, or at the latest after this time.
  const auto deadline = steady_clock::now() + 20s;
  while (rounds < before + 50 && steady_clock::now() < deadline) std::this_thread::sleep_for(10ms);
  EXPECT_GE(rounds - before, 50);
  done = true;
  ranks.clear();  // joins
  return failures;
}

void expect_undisturbed(const std::function<void(int port)>& disturb) {
  ::testing::internal::CaptureStderr();
  const std::vector<std::string> failures = run_disturbed(disturb);
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  expect_parts(said, {"tessera: rank 0 turned a connection from 127.0.0.1 away: ",
                      "(reported once; the job continues)"});
}

TEST(ControlDoor, RandomBytesDoNotAffectRanks) {
  expect_undisturbed([](int port) {
    std::mt19937 random(7);
    for (int stranger = 0; stranger < 200; ++stranger) {
      const FileDescriptor connection = connection_to(port);
      std::string bytes(random() % 5000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      // Some begin like one of our frames.
      if (stranger % 3 == 0) bytes = frame_of(static_cast<FrameKind>(random() % 13), bytes);
      if (stranger % 7 == 0) bytes = knock(this_protocol, meeting_of("ranks", "run", {})) + bytes;
      send_all(connection.get(), bytes);
    }
  });
}

TEST(ControlDoor, ACallerThatAnnouncesALongMessageIsDroppedAtOnce) {
  expect_undisturbed([](int port) {
    const FileDescriptor connection = connection_to(port);
    send_all(connection.get(), frame_of(FrameKind::knock, "", max_frame_bytes));
    EXPECT_LT(until_hung_up(connection.get()), 2s);
    std::this_thread::sleep_for(300ms);
  });
}

TEST(ControlDoor, ACallerOfAnotherVersionGetsAnError) {
  expect_undisturbed([](int port) {
    const FileDescriptor connection = connection_to(port);
    send_all(connection.get(), knock(2, meeting_of("ranks", "run", {})));
    const std::optional<Frame> answer = receive_frame(connection.get());
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.kind, FrameKind::refusal);
    expect_parts(answer->payload, {"another version: use the same on all hosts"});
    std::this_thread::sleep_for(300ms);
  });
}

// An incomplete connection, and one that sends a byte now and then, are dropped after the timeout.
TEST(ControlDoor, SilentAndSlowCallersAreDroppedInTime) {
  expect_undisturbed([](int port) {
    const FileDescriptor silent = connection_to(port);
    const FileDescriptor slow = connection_to(port);
    std::jthread drip([&](const std::stop_token& stop) {
      const std::string bytes = knock(this_protocol, meeting_of("ranks", "run", {}));
      for (std::size_t i = 0; i < bytes.size() && !stop.stop_requested(); ++i) {
        send_all(slow.get(), bytes.substr(i, 1));
        std::this_thread::sleep_for(200ms);
      }
    });
    EXPECT_LT(until_hung_up(silent.get()), 9s);
    EXPECT_LT(until_hung_up(slow.get()), 9s);
  });
}

TEST(ControlDoor, ARankWithAnotherKeyIsNamedAndDoesNotAffectOthers) {
  expect_undisturbed([](int port) {
    std::string failure;
    try {
      (void)connect_control_plane(door_world(1, 3, port), {1s, 60s, 2s}, another_key());
    } catch (const Error& error) {
      failure = error.what();
    }
    expect_parts(failure, {"rank 1 did not find rank 0", "does not know this job's key"});
  });
}

TEST(ControlDoor, SeveralHostsNeedAKey) {
  World world = door_world(0, 2, 20000);
  world.local_size = 1;
  try {
    (void)connect_control_plane(world, {1s, 60s, 2s}, JobKey());
    FAIL() << "there is no key";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    expect_parts(error.what(), {"a job over several hosts needs a secret key", "TESSERA_JOB_KEY",
                                "TESSERA_JOB_KEY_FILE", "TESSERA_JOB_KEY=none"});
  }
  try {
    (void)connect_control_plane(world, {1s, 60s, 2s}, JobKey::none());
    FAIL() << "rank 1 does not come";
  } catch (const Error& error) {
    expect_parts(error.what(), {"rank(s) 1 of 2 did not come"});
  }
}

}  // namespace
}  // namespace tessera::comm::control
