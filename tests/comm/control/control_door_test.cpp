// Admission to the control plane; unauthenticated connections to its port do not affect the ranks.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
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
#include "support/expect_parts.h"

namespace tessera::comm::control {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using tessera::testing::expect_parts;

const JobKey& the_key() {
  static const JobKey key = JobKey::from_text("the-key-of-these-tests", "here");
  return key;
}
const JobKey& another_key() {
  static const JobKey key = JobKey::from_text("the-key-of-another-job", "here");
  return key;
}

// A door that admits callers on a thread of its own.
class OpenDoor {
 public:
  explicit OpenDoor(const JobKey& key, std::size_t strangers = 64,
                    std::chrono::milliseconds patience = 6s)
      : listener_(*listen_on(0, true)),
        port_(port_of(listener_.get())),
        door_(std::move(listener_), meeting_of("test", "run", key), "the test",
              {.strangers = strangers,
               .patience = patience,
               .report = [this](const std::string& line) { lines.push_back(line); }}),
        thread_([this](const std::stop_token& stop) { serve(stop); }) {}

  [[nodiscard]] int port() const { return port_; }
  void close() { thread_ = {}; }  // joins

  std::vector<std::string> lines, introductions;  // read them after close()
  std::atomic<std::size_t> most_strangers{0};

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> watched;
      door_.add_to(watched);
      ::poll(watched.data(), watched.size(), 10);
      for (const Door::Caller& caller : door_.serve()) {
        introductions.push_back(caller.introduction);
        Door::answer(caller, "the host");
      }
      most_strangers = std::max(most_strangers.load(), door_.strangers());
    }
  }

  FileDescriptor listener_;
  int port_;
  Door door_;
  std::jthread thread_;
};

FileDescriptor connection_to(int port) {
  auto connection = connect_to("127.0.0.1", port);
  if (!connection) throw std::runtime_error("no process listens");
  return std::move(*connection);
}

// The host's answer, or the error.
std::string call(int port, const JobKey& key, const std::string& run = "run") {
  const FileDescriptor connection = connection_to(port);
  try {
    return introduce(connection.get(), meeting_of("test", run, key), "a caller", 5s);
  } catch (const NotOurHub& other) {
    return std::string("not ours: ") + other.what();
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

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

std::string frame_of(FrameKind kind, const std::string& payload, std::uint64_t bytes) {
  const FrameHeader header{.kind = kind, .bytes = bytes};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}
std::string frame_of(FrameKind kind, const std::string& payload) {
  return frame_of(kind, payload, payload.size());
}

// Protocol, key, meeting, nonce.
std::string knock(std::uint32_t protocol, const Meeting& meeting) {
  Writer writer;
  writer.number(protocol);
  writer.number<std::uint32_t>(1);
  writer.number(meeting.id);
  writer.number(Nonce{});
  return frame_of(FrameKind::knock, writer.bytes());
}

void send_all(int socket, const std::string& bytes) {
  (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Waits until the other end closes the connection; returns the time.
steady_clock::duration until_hung_up(int socket) {
  const auto begin = steady_clock::now();
  std::string bytes(4096, '\0');
  while (steady_clock::now() - begin < 30s) {
    pollfd wanted{socket, POLLIN, 0};
    if (::poll(&wanted, 1, 100) > 0 && ::recv(socket, bytes.data(), bytes.size(), 0) <= 0) break;
  }
  return steady_clock::now() - begin;
}

TEST(ControlDoor, AnOverheardProofIsUseless) {
  OpenDoor door(the_key());
  // The relay records the caller's bytes.
  FileDescriptor relay = *listen_on(0, true);
  std::string overheard;
  std::jthread listening([&] {
    const FileDescriptor caller(accept(relay.get(), nullptr, nullptr));
    const FileDescriptor host = connection_to(door.port());
    std::string bytes(4096, '\0');
    for (bool open = true; open;) {
      pollfd ends[] = {{caller.get(), POLLIN, 0}, {host.get(), POLLIN, 0}};
      ::poll(ends, 2, 1000);
      for (const int from : {0, 1}) {
        if (ends[from].revents == 0) continue;
        const ssize_t got = ::recv(ends[from].fd, bytes.data(), bytes.size(), 0);
        if (got <= 0) open = false;
        if (got <= 0) break;
        const std::string part = bytes.substr(0, static_cast<std::size_t>(got));
        if (from == 0) overheard += part;
        send_all(ends[1 - from].fd, part);
      }
    }
  });
  EXPECT_EQ(call(port_of(relay.get()), the_key()), "the host");
  listening.join();
  const FileDescriptor again = connection_to(door.port());
  send_all(again.get(), overheard);
  EXPECT_LT(until_hung_up(again.get()), 2s);
  door.close();
  EXPECT_EQ(door.introductions.size(), 1u);
  ASSERT_EQ(door.lines.size(), 1u);
  expect_parts(door.lines[0], {"it does not know the job's key"});
}

TEST(ControlDoor, SilentConnectionsAreLimitedAndBlockNoRank) {
  OpenDoor door(the_key(), 8, 300ms);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connection_to(door.port()));
  EXPECT_EQ(call(door.port(), the_key()), "the host");
  door.close();
  EXPECT_EQ(door.most_strangers, 8u);
  ASSERT_EQ(door.lines.size(), 1u);
  expect_parts(door.lines[0], {"it did not identify itself within 0.3 s"});
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
  const int port = 20000 + static_cast<int>(getpid()) % 30000;
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
      if (stranger % 7 == 0) bytes = knock(3, meeting_of("ranks", "run", {})) + bytes;
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
      const std::string bytes = knock(3, meeting_of("ranks", "run", {}));
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
