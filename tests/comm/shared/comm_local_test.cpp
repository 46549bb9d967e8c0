// Ranks that are threads: every collective at every world size, and errors when a rank misbehaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/world.h"
#include "support/expect_parts.h"
#include "tests/comm/shared/collective_cases.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using Ranks = cases::Ranks;
using tessera::testing::expect_parts;

class LocalRanks : public ::testing::TestWithParam<int> {
 protected:
  static void run(const std::function<void(const Ranks&)>& fn) {
    run_local(GetParam(), [&](const Ranks& ranks) {
      set_compute_threads(1);
      fn(ranks);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, LocalRanks, ::testing::Range(1, 9));

TEST_P(LocalRanks, KnowThemselves) {
  run([](const Ranks& ranks) {
    EXPECT_EQ(ranks->size(), GetParam());
    EXPECT_EQ(ranks->backend(), "local");
    EXPECT_EQ(
        ranks->exchange(std::to_string(ranks->rank()))[static_cast<std::size_t>(ranks->rank())],
        std::to_string(ranks->rank()));
    for (int i = 0; i < 100; ++i) ranks->barrier({.step = static_cast<std::uint64_t>(i)});
  });
}

TEST_P(LocalRanks, AllGather) {
  run([](const Ranks& ranks) {
    for (const std::size_t share : {0, 1, 7, 4096, 50'000})
      cases::check_all_gather(ranks, share, 4);
    cases::check_all_gather(ranks, 10, 2, 77);
    cases::check_gathered_ranges(ranks);
  });
}

TEST_P(LocalRanks, ReductionsAreTheTree) {
  run([](const Ranks& ranks) { cases::check_all_reductions(ranks, 42); });
}

TEST_P(LocalRanks, AllToAll) {
  run(cases::check_all_to_all);
}

TEST_P(LocalRanks, PointToPoint) {
  run(cases::check_point_to_point);
}

TEST_P(LocalRanks, Messages) {
  run(cases::check_messages);
}
TEST_P(LocalRanks, Groups) {
  run(cases::check_groups);
}
TEST_P(LocalRanks, DuplicatesOverlap) {
  run(cases::check_duplicates_overlap);
}
TEST_P(LocalRanks, SlowReaderIsWaitedFor) {
  run(cases::check_slow_reader_is_waited_for);
}

// Beyond two ranks, large sums are distributed in chunks; a chunk has half as many elements in
// fp64.
TEST(LocalLargeReductions, TakeSeveralChunks) {
  for (const int size : {1, 2, 3, 4}) {
    run_local(size, [](const Ranks& ranks) {
      set_compute_threads(1);
      cases::check_reductions(ranks, 135'001, {.in_dtype = bfloat16, .out_dtype = float64}, 3);
      cases::check_reductions(ranks, 70'001,
                              {.in_dtype = float64, .scale = 0.25f, .accumulate = true}, 4);
      for (const DType out : {float16, float32, float64}) {
        cases::check_reductions(ranks, 20'001, {.in_dtype = float16, .out_dtype = out, .group = 2},
                                5);
        cases::check_reductions(ranks, 20'001,
                                {.in_dtype = float16, .out_dtype = out, .accumulate = true}, 6);
      }
    });
  }
}

// Runs and returns the error's text; the error has to be a rank failure.
std::string text_of_failure(int ranks, const std::function<void(const Ranks&)>& fn,
                            ConnectOptions options = {}) {
  try {
    run_local(ranks, fn, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::rank_failed) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Turns each rank's exception into a rank-failed error, so that each can be examined.
void expect_on_every_rank(int ranks, const std::function<void(const Ranks&)>& fn,
                          const std::vector<std::string>& parts) {
  std::atomic<int> seen{0};
  run_local(ranks, [&](const Ranks& world) {
    try {
      fn(world);
      ADD_FAILURE() << "rank " << world->rank() << " saw no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::rank_failed);
      expect_parts(error.what(), parts);
      ++seen;
    }
  });
  EXPECT_EQ(seen, ranks);
}

TEST(LocalFailures, OpsDiffer) {
  expect_on_every_rank(3,
                       [](const Ranks& ranks) {
                         ranks->barrier();
                         if (ranks->rank() == 1) {
                           ranks->exchange("hello");
                         } else {
                           ranks->barrier({.step = 7});
                         }
                       },
                       {"do not agree", "rank 0", "barrier", "step 7", "rank 1", "exchange"});
}

TEST(LocalFailures, MessagesDiffer) {
  expect_on_every_rank(2,
                       [](const Ranks& ranks) {
                         std::vector<std::byte> memory(300);
                         if (ranks->rank() == 0) {
                           ranks->send(memory.data(), 200, 1, {.step = 7});
                           ranks->barrier();
                         } else {
                           ranks->receive(memory.data(), 300, 0, {.step = 7});
                         }
                       },
                       {"rank 0", "200 bytes", "rank 1", "300 bytes", "step 7"});
}

TEST(LocalFailures, AnInvalidPeerIsRefused) {
  run_local(2, [](const Ranks& ranks) {
    std::byte memory{};
    for (const int peer : {-1, ranks->rank(), 2}) {
      EXPECT_THROW(ranks->send(&memory, 1, peer), std::logic_error);
      EXPECT_THROW(ranks->receive(&memory, 1, peer), std::logic_error);
    }
    EXPECT_THROW(ranks->broadcast(&memory, 1, 2), std::logic_error);
  });
}

TEST(LocalFailures, BytesDiffer) {
  expect_on_every_rank(2,
                       [](const Ranks& ranks) {
                         ranks->allocate("weights", ranks->rank() == 0 ? 64 : 128,
                                         Sharing::one_copy);
                       },
                       {"do not agree", "weights", "64 bytes", "128 bytes"});
}

TEST(LocalFailures, DtypesDiffer) {
  expect_on_every_rank(2,
                       [](const Ranks& ranks) {
                         auto buffer = ranks->allocate("g", 64, Sharing::per_rank);
                         ranks->acquire(*buffer);
                         ranks->reduce_scatter(
                             *buffer, {}, {.in_dtype = ranks->rank() == 0 ? float32 : bfloat16},
                             {});
                       },
                       {"reduce_scatter", "float32 to float32", "bfloat16 to float32"});
}

TEST(LocalFailures, TagsDiffer) {
  expect_on_every_rank(
      4,
      [](const Ranks& ranks) {
        ranks->barrier({.step = 3, .unit = ranks->rank() == 2 ? 8u : 9u, .phase = Phase::forward});
      },
      {"step 3, unit 8, forward", "step 3, unit 9, forward", "rank 0", "rank 2"});
}

TEST(LocalFailures, GatheredBytesDiffer) {
  expect_on_every_rank(2,
                       [](const Ranks& ranks) {
                         auto buffer = ranks->allocate("pooled", 256, Sharing::one_copy);
                         ranks->acquire(*buffer);
                         ranks->all_gather(*buffer, ranks->rank() == 0 ? 64 : 128, {});
                       },
                       {"do not agree", "64 bytes", "128 bytes"});
}

TEST(LocalFailures, BuffersDiffer) {
  expect_on_every_rank(2,
                       [](const Ranks& ranks) {
                         auto first = ranks->allocate("first", 64, Sharing::one_copy);
                         auto second = ranks->allocate("second", 64, Sharing::one_copy);
                         auto& mine = ranks->rank() == 0 ? first : second;
                         ranks->acquire(*mine);
                         ranks->all_gather(*mine, mine->bytes(), {});
                       },
                       {"'first'", "'second'"});
}

TEST(LocalFailures, ExceptionOfOneRankIsRethrown) {
  try {
    run_local(4, [](const Ranks& ranks) {
      auto own_channel = ranks->duplicate("own");
      if (ranks->rank() == 2) throw std::out_of_range("the cause");
      for (;;) own_channel->barrier();
    });
    FAIL() << "no exception";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "the cause");
  }
}

TEST(LocalFailures, EarlyEndOfARankIsAnError) {
  const std::string text = text_of_failure(3, [](const Ranks& ranks) {
    ranks->barrier();
    if (ranks->rank() != 1) ranks->barrier({.step = 5});
  });
  expect_parts(text, {"rank 1", "has finished", "step 5"});
}

TEST(LocalFailures, DestroyedGroupIsAnError) {
  const std::string text = text_of_failure(2, [](const Ranks& ranks) {
    auto group = ranks->duplicate("pair");
    if (ranks->rank() == 1) {
      group.reset();
      ranks->barrier();
    } else {
      group->barrier();
    }
  });
  expect_parts(text, {"rank 1", "has finished with 'pair'"});
}

TEST(LocalFailures, DeadlineNamesTheMissingRank) {
  const std::string text = text_of_failure(3,
                                           [](const Ranks& ranks) {
                                             ranks->barrier({.step = 1});
                                             if (ranks->rank() == 2)
                                               std::this_thread::sleep_for(900ms);
                                             ranks->barrier({.step = 2});
                                           },
                                           {.collective_timeout = 300ms});
  expect_parts(text, {"rank 2", "did not come", "0.3 s", "step 2", "the last call", "step 1"});
}

TEST(LocalFailures, DeadlineNamesTheReadingRank) {
  const std::string text = text_of_failure(2,
                                           [](const Ranks& ranks) {
                                             auto buffer =
                                                 ranks->allocate("held", 64, Sharing::one_copy);
                                             ranks->acquire(*buffer);
                                             ranks->all_gather(*buffer, buffer->bytes(), {});
                                             if (ranks->rank() == 0) buffer->release();
                                             if (ranks->rank() == 1)
                                               std::this_thread::sleep_for(900ms);
                                             ranks->acquire(*buffer);
                                           },
                                           {.collective_timeout = 300ms});
  expect_parts(text, {"rank 1", "acquire of 'held'"});
}

TEST(LocalFailures, AbortReachesEveryRankAndEveryGroup) {
  expect_on_every_rank(4,
                       [](const Ranks& ranks) {
                         auto group = ranks->split(ranks->rank() % 2, 0, "half");
                         std::jthread later;
                         if (ranks->rank() == 3) {  // aborts during its own call
                           later = std::jthread([&] {
                             std::this_thread::sleep_for(50ms);
                             ranks->abort("out of memory");
                           });
                         }
                         if (ranks->rank() == 0) std::this_thread::sleep_for(100ms);
                         if (ranks->rank() % 2 == 0) {
                           for (;;) group->barrier();
                         }
                         for (;;) ranks->barrier();
                       },
                       {"rank 3", "gave up: out of memory"});
}

TEST(LocalFailures, LaterCallsFailAsWell) {
  expect_on_every_rank(2,
                       [](const Ranks& ranks) {
                         if (ranks->rank() == 0) ranks->abort("enough");
                         try {
                           ranks->barrier();
                         } catch (const Error&) {
                         }
                         ranks->exchange("anybody?");
                       },
                       {"enough"});
}

TEST(LocalMisuse, IsALogicError) {
  run_local(1, [](const Ranks& ranks) {
    auto shared = ranks->allocate("shared", 64, Sharing::one_copy);
    auto own = ranks->allocate("own", 64, Sharing::per_rank);
    float out = 0;
    EXPECT_THROW(ranks->all_gather(*shared, shared->bytes(), {}), std::logic_error);  // no acquire
    EXPECT_THROW(shared->release(), std::logic_error);  // nothing to release
    ranks->acquire(*shared);
    EXPECT_THROW(ranks->reduce_scatter(*shared, {}, {}, {}), std::logic_error);  // one_copy
    ranks->all_gather(*shared, shared->bytes(), {});
    EXPECT_THROW(ranks->acquire(*shared), std::logic_error);  // would wait for itself
    shared->release();
    EXPECT_THROW(shared->release(), std::logic_error);
    ranks->acquire(*own);
    EXPECT_THROW(ranks->all_gather(*own, own->bytes(), {}), std::logic_error);  // per_rank
    EXPECT_THROW(ranks->all_gather(*shared, 65, {}), std::logic_error);  // more than the buffer has
    EXPECT_THROW(ranks->all_gather(*shared, {{.first = 60, .bytes = 8}}, {}), std::logic_error);
    EXPECT_THROW(ranks->reduce_scatter(*own, {{.first = 16, .count = 1, .out = &out}}, {}, {}),
                 std::logic_error);
    EXPECT_THROW(ranks->reduce_scatter(*own, {{.first = 0, .count = 1, .out = nullptr}}, {}, {}),
                 std::logic_error);
    EXPECT_THROW(ranks->all_reduce(*own, 17, &out, {}, {}), std::logic_error);
    EXPECT_THROW(ranks->all_reduce(*own, 1, &out, {.in_dtype = int32}, {}), std::logic_error);
    EXPECT_THROW(ranks->all_reduce(*own, 1, &out, {.in_dtype = float32, .out_dtype = bfloat16}, {}),
                 std::logic_error);
    EXPECT_THROW(ranks->broadcast("x", 1), std::logic_error);
    auto other = ranks->duplicate("other");
    EXPECT_THROW(other->acquire(*own), std::logic_error);
  });
  EXPECT_THROW(run_local(0, [](const Ranks&) {}), std::logic_error);
}

TEST(LocalMemory, InvalidSizesAreRefused) {
  run_local(2, [](const Ranks& ranks) {
    EXPECT_THROW(ranks->allocate("absurd", std::size_t{1} << 62, Sharing::per_rank),
                 std::logic_error);
    try {
      ranks->allocate("huge", std::size_t{1} << 55, Sharing::one_copy);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    }
    cases::check_all_gather(ranks, 10, 2);  // still works
  });
}

TEST(LocalMemory, BuffersMayOutliveTheirCommunicator) {
  run_local(2, [](const Ranks& ranks) {
    auto group = ranks->duplicate("short");
    auto buffer = group->allocate("long", 8192, Sharing::one_copy);
    group->acquire(*buffer);
    buffer->data()[4096 * ranks->rank()] = std::byte{1};
    group->all_gather(*buffer, buffer->bytes(), {});
    group.reset();
    EXPECT_EQ(buffer->data()[0], std::byte{1});
    EXPECT_EQ(buffer->data()[4096], std::byte{1});
    buffer->release();
  });
}

}  // namespace
}  // namespace tessera::comm
