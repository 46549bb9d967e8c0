// Connections between hosts: ranks recognise each other; unauthenticated connections are closed and
// do not affect the ranks.
#include "comm/nodes/tcp/meeting.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/nodes/socket_pairs.h"
#include "comm/nodes/tcp/own_address.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::say;

World world_of(int rank) {
  return {.rank = rank, .size = 2, .local_size = 1, .node_rank = rank};
}

Meeting::Peer peer_of(int rank, const Meeting& meeting) {
  return {rank, meeting.contact(), "rank " + std::to_string(rank)};
}

FileDescriptor call_as_stranger(const Meeting& meeting) {
  return tessera::testing::connect_to_port(meeting.contact().port);
}

// Expects that ranks 0 and 1 have the two ends of a connection and that bytes of one reach the
// other.
void expect_connection(Meeting& zero, Meeting& one, std::uint64_t channel) {
  std::vector<FileDescriptor> ends(2);
  std::thread other([&] {
    ends[1] = std::move(one.connect(channel, {peer_of(0, zero)}, 10s, [] {}).front().socket);
  });
  ends[0] = std::move(zero.connect(channel, {peer_of(1, one)}, 10s, [] {}).front().socket);
  other.join();
  ASSERT_EQ(send(ends[0].get(), "x", 1, 0), 1);
  char heard = 0;
  for (int i = 0; i < 500 && recv(ends[1].get(), &heard, 1, MSG_DONTWAIT) != 1; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(heard, 'x');
}

TEST(HostsMeeting, ConnectsThePairOnEveryChannel) {
  Meeting zero(world_of(0), Protection::none), one(world_of(1), Protection::none);
  for (std::uint64_t channel = 1; channel < 5; ++channel) expect_connection(zero, one, channel);
}

TEST(HostsMeeting, UnauthenticatedConnectionsAreClosedAndDoNotAffectRanks) {
  Meeting zero(world_of(0), Protection::none), one(world_of(1), Protection::none);
  std::mt19937 random(5);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 60; ++i) {
    strangers.push_back(call_as_stranger(one));
    std::string noise(static_cast<std::size_t>(random() % 200), '\0');
    for (char& character : noise) character = static_cast<char>(random());
    if (i % 3 != 0) say(strangers.back(), noise);  // every third one sends nothing
    if (i % 5 == 0) strangers.pop_back();          // and every fifth one hangs up
  }
  expect_connection(zero, one, 1);
}

TEST(HostsMeeting, ABurstOfSilentConnectionsDelaysNoRank) {
  Meeting zero(world_of(0), Protection::none), one(world_of(1), Protection::none);
  std::vector<FileDescriptor> silent;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t count = std::min<std::size_t>(3000, limit.rlim_cur - 700);
  for (std::size_t i = 0; i < count; ++i) silent.push_back(call_as_stranger(one));
  const auto begin = std::chrono::steady_clock::now();
  expect_connection(zero, one, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
}

TEST(HostsMeeting, AWaitEndsWhenTheJobHasFailed) {
  Meeting zero(world_of(0), Protection::none), one(world_of(1), Protection::none);
  const auto look = [] { throw Error(ErrorCode::rank_failed, "rank 7 died"); };
  try {
    one.connect(1, {peer_of(0, zero)}, 60s, look);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {  // not that the time limit has passed
    EXPECT_EQ(std::string(error.what()), "rank 7 died");
  }
}

TEST(OwnAddress, NodeNumbersDistinguishHostsOnOneMachine) {
  EXPECT_NE(own_node(world_of(0)), own_node(world_of(1)));
  EXPECT_EQ(own_node(world_of(1)), own_node(world_of(1)));
  EXPECT_FALSE(own_address("127.0.0.1").empty());
}

// Without node numbers from the launcher, rank
// ranks-per-host would split the second of two hosts with two ranks and three.
TEST(OwnAddress, WithoutNodeNumbersTheMachineIsTheHost) {
  const auto rank_of_second = [](int rank) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    World world = world_from_environment();
    unsetenv("RANK");
    return world;
  };
  setenv("WORLD_SIZE", "5", 1);
  setenv("LOCAL_WORLD_SIZE", "3", 1);
  EXPECT_EQ(own_node(rank_of_second(2)), own_node(rank_of_second(3)));
  EXPECT_EQ(own_node(rank_of_second(2)), own_machine());
  setenv("GROUP_RANK", "1", 1);
  EXPECT_NE(own_node(rank_of_second(2)), own_machine());
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) unsetenv(name);
}

}  // namespace
}  // namespace tessera::comm
