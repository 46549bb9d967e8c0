// Other users and other programs at the place where the ranks of one node meet.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/file_descriptor.h"
#include "comm/shared/join/handshake.h"
#include "comm/shared/process_world.h"
#include "comm/world.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::Outcome;
using tessera::testing::Processes;
using tessera::testing::world_of_process;

constexpr uid_t another_user = 65534;

void expect_connected(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  EXPECT_FALSE(outcome.timed_out);
}

FileDescriptor connection_at(const MeetingAddress& meeting) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto deadline = std::chrono::steady_clock::now() + 5s;
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&meeting.address),
                   meeting.length) != 0 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(10ms);
  }
  return socket;
}

void allow_files(rlim_t files) {
  const rlimit limit{files, files};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// One process waits for it, and another opens it. It is made before the processes.
class Gate {
 public:
  Gate() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Gate() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() const { (void)!::write(ends_[1], "xx", 2); }
  void wait() const {
    char byte = 0;
    (void)!::read(ends_[0], &byte, 1);
  }

 private:
  int ends_[2];
};

// Rank 0 may open few files, and many silent connections come before rank 1 does.
void expect_rank_in_flood(bool of_another_user) {
  const Gate gate;
  Processes processes(3, [&](int index, std::atomic<int>&) {
    if (index == 0) {
      allow_files(64);
      connect(world_of_process(0, 2), {.rendezvous_timeout = 20s});
      return;
    }
    if (index == 1) {
      gate.wait();
      const auto begin = std::chrono::steady_clock::now();
      connect(world_of_process(1, 2), {.rendezvous_timeout = 20s});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
      return;
    }
    const MeetingAddress meeting = meeting_address(world_of_process(0, 2));
    allow_files(1000);
    if (of_another_user) {
      ASSERT_EQ(setuid(another_user), 0);
    }
    std::vector<FileDescriptor> silent;
    for (int i = 0; i < 800; ++i) silent.push_back(connection_at(meeting));
    gate.open();
    std::this_thread::sleep_for(3s);
  });
  for (const Outcome& outcome : processes.wait(30s)) expect_connected(outcome);
}

TEST(ShmStrangers, AFloodOfSilentConnectionsDelaysNoRank) {
  expect_rank_in_flood(false);
}

TEST(ShmStrangers, AFloodOfAnotherUserDelaysNoRank) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  expect_rank_in_flood(true);
}

TEST(ShmStrangers, ANameThatAnotherUserHasIsNamedByAllRanks) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Gate gate;
  Processes processes(3, [&](int index, std::atomic<int>&) {
    if (index < 2) {
      gate.wait();
      connect(world_of_process(index, 2), {.rendezvous_timeout = 5s});
      return;
    }
    const MeetingAddress meeting = meeting_address(world_of_process(0, 2));
    ASSERT_EQ(setuid(another_user), 0);
    const FileDescriptor taken(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(
        ::bind(taken.get(), reinterpret_cast<const sockaddr*>(&meeting.address), meeting.length),
        0);
    ASSERT_EQ(::listen(taken.get(), 8), 0);
    gate.open();
    std::this_thread::sleep_for(3s);
  });
  const std::vector<Outcome> outcomes = processes.wait(10s);
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCode::configuration));
    for (const char* part : {"a process of another user (pid ", "uid 65534", "choose another"}) {
      EXPECT_NE(outcome.message.find(part), std::string::npos) << outcome.message;
    }
  }
}

}  // namespace
}  // namespace tessera::comm
