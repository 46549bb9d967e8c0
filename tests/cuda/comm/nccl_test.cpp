// The NCCL communicator, on the emulated GPU over a stand-in for NCCL: in the fixed order the bits
// of every other communicator, in NCCL's own order close to them; ranks that differ, hang or give
// up are named.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <latch>
#include <mutex>
#include <string>

#include "comm/control/bootstrap.h"
#include "comm/nccl/job.h"
#include "comm/watch/busy.h"
#include "comm/world.h"
#include "cuda/comm/comm_testing.h"
#include "cuda/comm/nccl_ranks.h"

namespace tessera::testing {
namespace {

using comm::Communicator;
using comm::Sharing;

Results over_nccl(int ranks, bool fixed_order, const Program& program) {
  Results results;
  std::mutex mutex;
  expect_no_failure(run_nccl(ranks,
                             [&](const Ranks& communicator) {
                               std::vector<Bytes> seen;
                               program(communicator, seen);
                               communicator->barrier();
                               const std::lock_guard lock(mutex);
                               results[communicator->rank()] = std::move(seen);
                             },
                             {.fixed_order = fixed_order}));
  return results;
}

Results on_the_cpu(int ranks, const Program& program) {
  Results results;
  std::mutex mutex;
  comm::run_local(ranks, [&](const Ranks& communicator) {
    std::vector<Bytes> seen;
    program(communicator, seen);
    const std::lock_guard lock(mutex);
    results[communicator->rank()] = std::move(seen);
  });
  return results;
}

void sums(const Ranks& communicator, std::vector<Bytes>& seen) {
  reduce(communicator, 517, {.scale = 0.25f}, seen);
  reduce(communicator, 300, {.in_dtype = bfloat16, .scale = 0.5f, .accumulate = true}, seen);
  reduce(communicator, 260, {.in_dtype = bfloat16, .out_dtype = bfloat16}, seen);
  reduce(communicator, 100, {.in_dtype = float16, .group = 2}, seen);
}

// NCCL's GetUniqueId of the test below, which notes the interface that NCCL would listen on.
const cuda::NcclFunctions* real_nccl = nullptr;
std::string interface_of_nccl;

std::string interface_for(const std::string& master_address) {
  cuda::NcclFunctions functions = *real_nccl;
  functions.GetUniqueId = [](ncclUniqueId* id) {
    const char* name = std::getenv("NCCL_SOCKET_IFNAME");
    interface_of_nccl = name == nullptr ? "" : name;
    return real_nccl->GetUniqueId(id);
  };
  comm::World world = world_of(0, 1, free_port());
  world.master_address = master_address;
  (void)comm::connect_nccl_with(functions, world, {.device = nccl_device(0)});
  return interface_of_nccl;
}

TEST(Nccl, ThePortsOfOneNodeAreOnItsLoopback) {
  TESSERA_NEEDS_NCCL(1);
  real_nccl = nccl_under_test(1).functions;
  unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_EQ(interface_for("192.0.2.1"), "");
  EXPECT_EQ(interface_for("127.0.0.1"), "=lo");
  setenv("NCCL_SOCKET_IFNAME", "eth", 1);
  EXPECT_EQ(interface_for("127.0.0.1"), "eth");
  unsetenv("NCCL_SOCKET_IFNAME");
}

TEST(Nccl, GathersInOrder) {
  for (const int ranks : {1, 2, 3}) {
    TESSERA_NEEDS_NCCL(ranks);
    EXPECT_TRUE(over_nccl(ranks, false, gather_several_times) ==
                on_the_cpu(ranks, gather_several_times))
        << ranks << " ranks";
    EXPECT_TRUE(over_nccl(ranks, false, gather_ranges) == on_the_cpu(ranks, gather_ranges))
        << ranks << " ranks";
  }
}

TEST(Nccl, TheFixedOrderGivesTheBitsOfOtherCommunicators) {
  for (const int ranks : {1, 2, 3, 4}) {
    TESSERA_NEEDS_NCCL(ranks);
    EXPECT_TRUE(over_nccl(ranks, true, sums) == on_the_cpu(ranks, sums)) << ranks << " ranks";
  }
}

// NCCL does not sum 16-bit elements, because it would round after every rank.
TEST(Nccl, SumsOf16BitsAreThoseOfOtherCommunicators) {
  const Program program = [](const Ranks& communicator, std::vector<Bytes>& seen) {
    reduce(communicator, 300, {.in_dtype = bfloat16, .scale = 0.5f, .accumulate = true}, seen);
    reduce(communicator, 100, {.in_dtype = float16, .group = 2}, seen);
  };
  for (const int ranks : {1, 2, 4}) {
    TESSERA_NEEDS_NCCL(ranks);
    EXPECT_TRUE(over_nccl(ranks, false, program) == on_the_cpu(ranks, program)) << ranks;
  }
}

TEST(Nccl, ItsOwnOrderIsCloseToTheFixedOne) {
  TESSERA_NEEDS_NCCL(4);
  const Program program = [](const Ranks& communicator, std::vector<Bytes>& seen) {
    reduce(communicator, 517, {.scale = 0.25f, .accumulate = true}, seen);
  };
  const Results own = over_nccl(4, false, program);
  const Results expected = on_the_cpu(4, program);
  for (const auto& [rank, outputs] : expected) {
    ASSERT_EQ(own.at(rank).size(), outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for (std::size_t at = 0; at < outputs[i].size(); at += sizeof(float)) {
        float want = 0, have = 0;
        std::memcpy(&want, outputs[i].data() + at, sizeof(float));
        std::memcpy(&have, own.at(rank)[i].data() + at, sizeof(float));
        ASSERT_NEAR(have, want, 1e-5 * std::max(1.0f, std::fabs(want)));
      }
    }
  }
}

// Adjacent ranges of equal size use NCCL's own reduce-scatter.
TEST(Nccl, EqualSharesAreOneReduceScatter) {
  TESSERA_NEEDS_NCCL(3);
  const Program program = [](const Ranks& ranks, std::vector<Bytes>& seen) {
    constexpr std::int64_t share = 64;
    const std::int64_t count = share * ranks->size();
    const auto buffer =
        ranks->allocate("even", static_cast<std::size_t>(count) * sizeof(float), Sharing::per_rank);
    const Output out(ranks->device(), Bytes(share * sizeof(float)));
    ranks->acquire(*buffer);
    // Small whole numbers: exact in any order.
    Bytes mine(static_cast<std::size_t>(count) * sizeof(float));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i % 50 + ranks->rank());
      std::memcpy(mine.data() + i * 4, &value, 4);
    }
    upload(ranks->device(), buffer->data(), mine);
    ranks->reduce_scatter(*buffer, {{ranks->rank() * share, share, out.data()}}, {}, {});
    seen.push_back(out.read());
  };
  EXPECT_TRUE(over_nccl(3, false, program) == on_the_cpu(3, program));
}

// The calls of NCCL by all ranks together.
struct NcclCalls {
  const cuda::NcclFunctions* real = nullptr;
  std::atomic<int> gathers{0}, scatters{0}, reductions{0}, groups{0};
};
NcclCalls& nccl_calls() {
  static NcclCalls calls;
  return calls;
}

cuda::NcclFunctions counted(const cuda::NcclFunctions& real) {
  NcclCalls& calls = nccl_calls();
  calls.real = &real;
  calls.gathers = calls.scatters = calls.reductions = calls.groups = 0;
  cuda::NcclFunctions functions = real;
  functions.AllGather = [](auto... arguments) {
    ++nccl_calls().gathers;
    return nccl_calls().real->AllGather(arguments...);
  };
  functions.ReduceScatter = [](auto... arguments) {
    ++nccl_calls().scatters;
    return nccl_calls().real->ReduceScatter(arguments...);
  };
  functions.Reduce = [](auto... arguments) {
    ++nccl_calls().reductions;
    return nccl_calls().real->Reduce(arguments...);
  };
  functions.GroupEnd = [] {
    ++nccl_calls().groups;
    return nccl_calls().real->GroupEnd();
  };
  return functions;
}

// A unit of several segments, as its gather and its reduction pass them.
TEST(Nccl, SegmentsOfAUnitAreOneGroupOfCalls) {
  TESSERA_NEEDS_NCCL(3);
  constexpr std::int64_t first_share = 64, second_share = 192;
  const Program program = [](const Ranks& ranks, std::vector<Bytes>& seen) {
    const std::int64_t size = ranks->size();
    const std::int64_t second = size * first_share + 32;  // with a gap after the first one
    const std::int64_t count = second + size * second_share;
    const auto buffer = ranks->allocate("segments", static_cast<std::size_t>(count) * sizeof(float),
                                        Sharing::per_rank);
    const Output out(ranks->device(), Bytes((first_share + second_share) * sizeof(float)));
    ranks->acquire(*buffer);
    Bytes mine(static_cast<std::size_t>(count) * sizeof(float));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i % 50 + ranks->rank());  // exact in any order
      std::memcpy(mine.data() + i * 4, &value, 4);
    }
    upload(ranks->device(), buffer->data(), mine);
    ranks->reduce_scatter(*buffer,
                          {{ranks->rank() * first_share, first_share, out.data()},
                           {second + ranks->rank() * second_share, second_share,
                            out.data() + first_share * sizeof(float)}},
                          {}, {});
    seen.push_back(out.read());
    gather_ranges(ranks, seen);
  };
  const cuda::NcclFunctions functions = counted(*nccl_under_test(3).functions);
  Results results;
  std::mutex mutex;
  expect_no_failure(run_nccl(
      3,
      [&](const Ranks& ranks) {
        std::vector<Bytes> seen;
        program(ranks, seen);
        ranks->barrier();
        const std::lock_guard lock(mutex);
        results[ranks->rank()] = std::move(seen);
      },
      {}, -1, &functions));
  EXPECT_TRUE(results == on_the_cpu(3, program));
  EXPECT_EQ(nccl_calls().scatters, 2 * 3);
  EXPECT_EQ(nccl_calls().gathers, (2 + 1) * 3);
  EXPECT_EQ(nccl_calls().reductions, 0);
  EXPECT_EQ(nccl_calls().groups, 2 * 3);  // a single range needs no group
}

TEST(Nccl, GroupsChannelsAndMessages) {
  TESSERA_NEEDS_NCCL(4);
  const Program program = [](const Ranks& ranks, std::vector<Bytes>& seen) {
    const auto half = ranks->split(ranks->rank() % 2, -ranks->rank(), "half");
    reduce(half, 65, {}, seen);
    gather_several_times(half->duplicate("again"), seen);
    std::string all;
    for (const std::string& text : ranks->exchange(std::string(1, char('a' + ranks->rank())), {})) {
      all += text;
    }
    EXPECT_EQ(all, "abcd");
    EXPECT_EQ(
        ranks->broadcast("from " + all.substr(static_cast<std::size_t>(ranks->rank()), 1), 2, {}),
        "from c");
  };
  EXPECT_TRUE(over_nccl(4, true, program) == on_the_cpu(4, program));
}

void expect_all_say(const std::vector<std::string>& failures,
                    std::initializer_list<const char*> parts) {
  for (const std::string& failure : failures) {
    for (const char* part : parts) {
      EXPECT_NE(failure.find(part), std::string::npos) << part << " is not in: " << failure;
    }
  }
}

TEST(Nccl, MismatchesNameBothRanks) {
  TESSERA_NEEDS_NCCL(2);
  const auto failures = run_nccl(2,
                                 [](const Ranks& ranks) {
                                   const auto buffer =
                                       ranks->allocate("pooled", 256, Sharing::one_copy);
                                   ranks->acquire(*buffer);
                                   ranks->all_gather(*buffer, ranks->rank() == 0 ? 64 : 128, {});
                                   ranks->barrier();
                                 },
                                 {.collective_timeout = std::chrono::seconds(60)});
  expect_all_say(failures, {"rank 0", "64 bytes", "rank 1", "128 bytes"});
}

TEST(Nccl, ARankThatGivesUpEndsTheOthers) {
  TESSERA_NEEDS_NCCL(3);
  const auto failures = run_nccl(3, [](const Ranks& ranks) {
    ranks->barrier();
    if (ranks->rank() == 1) throw std::runtime_error("rank 1's own trouble");
    const auto buffer = ranks->allocate("gradients", 4096, Sharing::per_rank);
  });
  EXPECT_EQ(failures[1], "rank 1's own trouble");
  expect_all_say({failures[0], failures[2]}, {"rank 1", "gave up", "rank 1's own trouble"});
}

TEST(Nccl, AMissingRankIsNamed) {
  TESSERA_NEEDS_NCCL(3);
  const auto failures = run_nccl(
      3, [](const Ranks&) { FAIL() << "there is no world"; },
      {.rendezvous_timeout = std::chrono::seconds(2)}, 2);
  expect_all_say({failures[0], failures[1]}, {"rank(s) 2 of 3 did not come within 2 s"});
}

// Rank 1 computes, or hangs: it never reaches the collective.
TEST(Nccl, ARankThatHangsIsNamed) {
  TESSERA_NEEDS_NCCL(2);
  const auto failures = run_nccl(2,
                                 [](const Ranks& ranks) {
                                   const auto buffer =
                                       ranks->allocate("pooled", 256, Sharing::one_copy);
                                   if (ranks->rank() == 1) {
                                     testing::compute_for(std::chrono::seconds(4));
                                     ranks->barrier();
                                     return;
                                   }
                                   ranks->acquire(*buffer);
                                   ranks->all_gather(*buffer, 256, {.step = 7});
                                   ranks->barrier();
                                 },
                                 {.collective_timeout = std::chrono::seconds(2)});
  expect_all_say({failures[0]}, {"rank 1", "all_gather of 'pooled'", "step 7"});
}

constexpr comm::ConnectOptions soon{.standstill_timeout = std::chrono::milliseconds(800)};

TEST(Nccl, ABlockedRankThatSkipsACollectiveIsNamedSoon) {
  TESSERA_NEEDS_NCCL(3);
  std::latch ended(2);
  const auto failures = run_nccl(
      3,
      [&](const Ranks& ranks) {
        const auto buffer = ranks->allocate("pooled", 384, Sharing::one_copy);
        if (ranks->rank() == 1) {
          ended.wait();
          return;
        }
        try {
          ranks->acquire(*buffer);
          ranks->all_gather(*buffer, 384, {.step = 7, .unit = 2});
          ranks->barrier();
        } catch (const Error&) {
          ended.count_down();
          throw;
        }
      },
      soon);
  expect_all_say({failures[0], failures[2]},
                 {"rank 1 (pid ", "has stood still for 0.8 s", "its last call was allocate",
                  "all_gather of 'pooled'", "step 7, unit 2", "rank 0, 2 only: step 7"});
}

TEST(Nccl, RanksInADeadlockOverTwoChannelsAreNamedSoon) {
  TESSERA_NEEDS_NCCL(2);
  const auto failures = run_nccl(
      2,
      [&](const Ranks& ranks) {
        const auto other = ranks->duplicate("other");
        const auto buffer = ranks->allocate("pooled", 256, Sharing::one_copy);
        if (ranks->rank() == 1) {
          other->barrier({.step = 8});
          return;
        }
        ranks->acquire(*buffer);
        ranks->all_gather(*buffer, 256, {.step = 7});
        current_queue(ranks->device()).synchronize();
        ranks->barrier({.step = 9});
      },
      soon);
  expect_all_say(failures, {"all ranks wait for one another", "step 7", "step 8", "'other'"});
}

// The end of a collective on a device that fails meanwhile.
class PointOfAFailingDevice final : public QueuePoint {
 public:
  [[nodiscard]] bool reached() const override {
    if (looks_++ == 0) return false;
    fail(ErrorCode::runtime, "cudaEventQuery failed: an illegal address was accessed");
  }
  void synchronize() const override {}
  [[nodiscard]] double seconds_since(const QueuePoint&) const override { return 0; }

 private:
  mutable std::atomic<int> looks_ = 0;
};

TEST(NcclJob, AFailingDeviceIsReportedToEveryRank) {
  constexpr std::chrono::seconds patience{20};
  comm::NcclJob job(
      comm::control::connect_control_plane(world_of(0, 1, free_port()), {patience, patience}),
      nccl_device(0), patience);
  const comm::Call call(comm::Op::all_gather, {.step = 3});
  job.expect(call, std::make_shared<PointOfAFailingDevice>());
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!job.control().failed() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  try {
    job.control().check(call);
    FAIL() << "no rank got the error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an illegal address"), std::string::npos)
        << error.what();
  }
}

// NCCL would send the data of several hosts as it is.
TEST(Nccl, EncryptionBetweenHostsIsRefused) {
  TESSERA_NEEDS_NCCL(2);
  comm::World world = world_of(0, 2, free_port());
  world.local_size = 1;
  comm::ConnectOptions options;
  options.device = nccl_device(0);
  setenv("TESSERA_ENCRYPT", "1", 1);
  std::string refusal;
  try {
    (void)comm::connect(world, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    refusal = error.what();
  }
  unsetenv("TESSERA_ENCRYPT");
  for (const char* part : {"TESSERA_ENCRYPT=1", "rank 0 is on cuda", "NCCL", "unset it"}) {
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace tessera::testing
