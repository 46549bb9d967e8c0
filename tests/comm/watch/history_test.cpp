// The last collectives of each rank, and their description in an error.
#include "comm/history.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

namespace tessera::comm {
namespace {

HistoryEntry entry(std::uint64_t channel, std::string_view name, std::uint64_t round, Op op,
                   Tag tag) {
  return {channel, round, name, Call(op, tag)};
}

HistoryEntry gather(std::uint64_t round, std::uint64_t step, std::uint32_t unit) {
  return entry(1, "gather", round, Op::all_gather,
               {.step = step, .unit = unit, .phase = Phase::forward});
}

TEST(History, KeepsTheLast32) {
  const auto history = std::make_unique<History>();
  EXPECT_TRUE(history->get().empty());
  for (std::uint64_t round = 1; round <= 100; ++round) history->add(gather(round, 7, 3));
  const std::vector<HistoryEntry> entries = history->get();
  ASSERT_EQ(entries.size(), 32u);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].round, 69 + i);
    EXPECT_EQ(entries[i].call, gather(1, 7, 3).call);
    EXPECT_STREQ(entries[i].channel_name.data(), "gather");
  }
}

void expect_whole(const History& history) {
  for (const HistoryEntry& one : history.get()) {
    ASSERT_EQ(one.call.step, one.round);
    ASSERT_EQ(one.call.unit, one.round);
  }
}

TEST(History, IsReadWhileThreadsWrite) {
  const auto history = std::make_unique<History>();
  std::vector<std::jthread> writers;
  for (int thread = 0; thread < 2; ++thread) {
    writers.emplace_back([&history] {
      for (std::uint64_t round = 0; round < 20'000; ++round) {
        history->add(gather(round, round, static_cast<std::uint32_t>(round)));
      }
    });
  }
  for (int look = 0; look < 1000; ++look) expect_whole(*history);
}

std::atomic<bool> interrupted{false};

void sleep_a_little(int) {
  interrupted = true;
  const timespec pause{0, 50'000};
  ::nanosleep(&pause, nullptr);
}

// The writer is interrupted, mostly in the middle of an entry, while another one fills the ring.
TEST(History, AWriterThatWasInterruptedTouchesNoNewerEntry) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = sleep_a_little;
  ASSERT_EQ(::sigaction(SIGUSR2, &action, &before), 0);
  const auto history = std::make_unique<History>();
  std::atomic<bool> pause{false}, paused{false};
  {
    std::jthread writer([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        history->add(gather(1, 1, 1));
        while (pause) {
          paused = true;
          std::this_thread::yield();
        }
      }
    });
    for (int i = 0; i < 1000; ++i) {
      interrupted = paused = false;
      ::pthread_kill(writer.native_handle(), SIGUSR2);
      while (!interrupted) std::this_thread::yield();
      pause = true;
      for (std::size_t n = 0; n < 2 * history_length; ++n) history->add(gather(2, 2, 2));
      while (!paused) std::this_thread::yield();
      expect_whole(*history);
      pause = false;
    }
  }
  EXPECT_EQ(history->get().size(), history_length);
  ASSERT_EQ(::sigaction(SIGUSR2, &before, nullptr), 0);
}

TEST(History, CommonCallsAreListedOnce) {
  std::vector<RankHistory> ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    auto& its = ranks[static_cast<std::size_t>(rank)];
    its.rank = rank;
    for (std::uint32_t unit = 0; unit < 4; ++unit) its.entries.push_back(gather(unit, 7, unit));
    its.entries.push_back(entry(2, "world", 1, Op::exchange, {.step = 7, .phase = Phase::metrics}));
    its.entries.push_back(entry(2, "world", 2, Op::exchange, {.step = 7, .phase = Phase::metrics}));
    if (rank != 1) its.entries.push_back(gather(4, 8, 0));
  }
  EXPECT_EQ(
      describe_histories(ranks),
      "the last 32 collectives of each rank: on 'gather' step 7: forward: all_gather unit 0 1 "
      "2 3 | rank 0, 2 only: step 8: forward: all_gather unit 0; on 'world' step 7: metrics: "
      "exchange unit 0 (2 times)");
}

TEST(History, RanksThatDifferInARoundAreListedSeparately) {
  std::vector<RankHistory> ranks{{0, {gather(1, 7, 0), gather(2, 7, 1)}},
                                 {1, {gather(1, 7, 0), gather(2, 7, 2)}}};
  EXPECT_EQ(
      describe_histories(ranks),
      "the last 32 collectives of each rank: on 'gather' step 7: forward: all_gather unit 0 | "
      "rank 0 only: step 7: forward: all_gather unit 1 | rank 1 only: step 7: forward: "
      "all_gather unit 2");
}

// A rank that has made more calls elsewhere no longer has older rounds in its history, but took
// part in them.
TEST(History, ForgottenRoundsAreNotMissing) {
  std::vector<RankHistory> ranks{{0, {gather(1, 7, 0), gather(2, 7, 1)}}, {1, {gather(2, 7, 1)}}};
  EXPECT_EQ(
      describe_histories(ranks),
      "the last 32 collectives of each rank: on 'gather' step 7: forward: all_gather unit 0 1");
}

TEST(History, AnEmptyHistoryHasNoText) {
  EXPECT_EQ(describe_histories({{0, {}}, {1, {}}}), "");
}

}  // namespace
}  // namespace tessera::comm
