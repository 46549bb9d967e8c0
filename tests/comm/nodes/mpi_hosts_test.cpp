// Backend shm+mpi: data cross between hosts by MPI, and all results equal those over TCP bit for
// bit. Settings that MPI does not support are refused.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "comm/mpi/library.h"
#include "comm/nodes/mpi/mpi_transport.h"
#include "comm/nodes/mpi_world.h"
#include "comm/world.h"
#include "sharding/sharding_testing.h"
#include "support/expect_parts.h"
#include "tests/comm/shared/collective_cases.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::in_mpirun;
using tessera::testing::MpiRun;
using tessera::testing::no_mpirun;
using tessera::testing::say_from_rank;
using tessera::testing::world_under_mpirun;
using Ranks = cases::Ranks;

Mpi& library() {
  return mpi_library("the test", "skip it");
}

// ---- the tests that the ranks run

// All results of three steps on this rank, bit for bit.
std::string trained_part(const Context& context, const ShardingOptions& options) {
  const tessera::testing::OneThread one_thread;
  manual_seed(17);
  tessera::testing::ToyTransformer net(0.1);
  ShardedModel model = fully_shard(net, context, options);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  std::string text = tessera::testing::describe(options);
  for (int step = 0; step < 3; ++step) {
    const std::int64_t first = 2 * (step * context.world_size() + context.rank());
    begin_batch({static_cast<std::uint64_t>(step), first, 2});
    const tessera::testing::ToyBatch batch = tessera::testing::toy_batch(first, 2);
    const Tensor loss = net.loss(batch.ids, batch.targets);
    loss.backward();
    text += fmt::format(" {:a}", loss.item());
    text += fmt::format(" {:a}", model.clip_grad_norm(1e-3));
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const ShardedParameter& part : model.sharded_parameters()) {
    text += "\n" + part.name;
    for (const double value : part.local.to_vector()) text += fmt::format(" {:a}", value);
  }
  return text + "\n";
}

std::vector<ShardingOptions> some_strategies() {
  using tessera::testing::toy_options;
  std::vector<ShardingOptions> all{
      toy_options(Strategy::no_shard), toy_options(Strategy::full_shard),
      toy_options(Strategy::shard_grad_op), toy_options(Strategy::hybrid_shard, 2)};
  all.push_back(toy_options(Strategy::full_shard));
  all.back().param_dtype = bfloat16;
  return all;
}

std::string trained_parts(const Context& context) {
  std::string text;
  for (const ShardingOptions& options : some_strategies()) text += trained_part(context, options);
  return text;
}

// Messages of all sizes around that of a piece, in both directions at once, between a rank and the
// corresponding rank of the other host; the last one is shorter than expected.
void check_pieces(const World& world) {
  const int peer = (world.rank + 2) % 4;
  constexpr std::size_t piece = 1000;
  MpiTransport transport(library(), library().copy_world([] {}), {{peer, {peer, 5, "the peer"}}},
                         piece);
  const std::vector<std::size_t> sizes{0, 1, 999, 1000, 1001, 0, 30'000, 12'345, 0};
  std::vector<std::vector<std::byte>> out, in;
  for (const std::size_t bytes : sizes) {
    out.emplace_back(bytes, static_cast<std::byte>(world.rank * 50 + out.size()));
    in.emplace_back(bytes);
    transport.receive(peer, in.back().data(), bytes);
    transport.send(peer, out.back().data(), bytes);
  }
  EXPECT_EQ(transport.waits_for(), std::vector<int>{peer});
  while (!transport.idle()) transport.move(20ms);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(in[i], std::vector<std::byte>(sizes[i], static_cast<std::byte>(peer * 50 + i)));
  }
  EXPECT_TRUE(transport.waits_for().empty());
  transport.send(peer, out.back().data(), 0);
  transport.send(peer, out[2].data(), 300);
  transport.receive(peer, in.front().data(), 0);
  transport.receive(peer, in[2].data(), 500);
  try {
    while (!transport.idle()) transport.move(20ms);
    ADD_FAILURE() << "a short message was taken";
  } catch (const LinkBroken& broken) {
    tessera::testing::expect_parts(broken.what(),
                                   {"the peer", "300 bytes came where 500 were expected"});
  }
  while (!transport.sent(peer, 11)) transport.move(20ms);
}

TEST(MpiHostsRank, DoesEverything) {
  if (!in_mpirun()) GTEST_SKIP() << "runs inside mpirun: see the tests below";
  const World world = world_under_mpirun();
  std::string trained;
  {
    const Ranks ranks = connect(world);
    EXPECT_EQ(ranks->backend(), "shm+mpi");
    for (const std::size_t share : {0, 1, 4096, 3'000'000}) {
      cases::check_all_gather(ranks, share, 2);
    }
    cases::check_all_reductions(ranks, 43);
    cases::check_reductions(ranks, 1'200'001, {.scale = 0.5f}, 3);
    cases::check_all_to_all(ranks);
    cases::check_point_to_point(ranks);
    cases::check_messages(ranks);
    cases::check_groups(ranks);
    cases::check_duplicates_overlap(ranks);
    cases::check_slow_reader_is_waited_for(ranks);
    check_pieces(world);
    trained = trained_parts(Context(world, ranks));
  }
  // MPI can start only once in a process.
  try {
    connect(world);
    ADD_FAILURE() << "MPI has begun again";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    tessera::testing::expect_parts(error.what(), {"MPI has ended in this process"});
  }
  if (!HasFailure()) say_from_rank(world, trained);
}

// A program that uses MPI itself, and finalises it.
class MpiOfProgram {
 public:
  explicit MpiOfProgram(Mpi::Threads threads) {
    library();
    const auto init =
        reinterpret_cast<int (*)(int*, char***, int, int*)>(dlsym(RTLD_DEFAULT, "MPI_Init_thread"));
    int provided = 0;
    EXPECT_EQ(init(nullptr, nullptr, static_cast<int>(threads), &provided), 0);
    EXPECT_EQ(provided, static_cast<int>(threads));
  }
  ~MpiOfProgram() { reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPI_Finalize"))(); }
  MpiOfProgram(const MpiOfProgram&) = delete;
  MpiOfProgram& operator=(const MpiOfProgram&) = delete;
};

// Uses another port than before, where the last hub may still listen.
World anew(World world, int round) {
  world.master_port += 20 * round;
  return world;
}

TEST(MpiHostsRank, OfAProgramThatUsesMpi) {
  if (!in_mpirun()) GTEST_SKIP() << "runs inside mpirun: see the tests below";
  const World world = world_under_mpirun();
  const MpiOfProgram program(Mpi::Threads::serialized);
  for (int round = 0; round < 2; ++round) {
    const Ranks ranks = connect(anew(world, round));
    cases::check_reductions(ranks, 1000, {}, 3);
    cases::check_duplicates_overlap(ranks);
  }
  if (!HasFailure()) say_from_rank(world, "done");
}

std::string refusal_of(const World& world) {
  try {
    connect(world);
  } catch (const Error& error) {
    return fmt::format("code {}: {}\n", static_cast<int>(error.code()), error.what());
  }
  return "taken";
}

TEST(MpiHostsRank, IsRefused) {
  if (!in_mpirun()) GTEST_SKIP() << "runs inside mpirun: see the tests below";
  const World world = world_under_mpirun();
  const MpiOfProgram program(Mpi::Threads::funneled);
  World other = world;
  other.rank = world.rank ^ 2;
  other.node_rank = other.rank / 2;
  const std::string first = refusal_of(other);
  say_from_rank(world, first + refusal_of(anew(world, 1)));
}

// The number of this process's sockets that listen, of both IP versions.
int listening_sockets() {
  std::set<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // that of the loop itself
    open.insert(std::filesystem::read_symlink(entry.path(), closed).string());
  }
  int count = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::vector<std::string> all{std::istream_iterator<std::string>(fields), {}};
      constexpr std::size_t state = 3, inode = 9;
      if (all.size() <= inode || all[state] != "0A") continue;
      count += static_cast<int>(open.count("socket:[" + all[inode] + "]"));
    }
  }
  return count;
}

TEST(MpiHostsRank, CountsItsListeners) {
  if (!in_mpirun()) GTEST_SKIP() << "runs inside mpirun: see the tests below";
  const World world = world_under_mpirun();
  const int before = listening_sockets();
  const Ranks ranks = connect(world);
  const int hub = world.rank == 0 ? 1 : 0;
  cases::check_reductions(ranks, 1000, {}, 3);
  if (!HasFailure()) say_from_rank(world, std::to_string(listening_sockets() - before - hub));
}

// ---- the tests

// MPI admits every program that reaches its ports. With the transports of the user it opens them.
TEST(MpiHosts, RanksOfOneHostOpenNoPortsForMpi) {
  if (in_mpirun()) return;
  if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  for (const std::string chosen : {"", "OMPI_MCA_btl=self,tcp"}) {
    const MpiRun ranks;
    EXPECT_EQ(ranks.run("MpiHostsRank.CountsItsListeners", chosen), 0) << ranks.output();
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(ranks.said(rank) == "0", chosen.empty()) << ranks.said(rank) << ranks.output();
    }
  }
}

// Rank 0's address is also exchanged by MPI.
TEST(MpiHosts, TwoOfTwoGiveTheBitsOfOneHost) {
  if (in_mpirun()) return;
  if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  std::map<int, std::string> expected;
  std::mutex mutex;
  launch(4, [&](Context& context) {
    const std::string text = trained_parts(context);
    const std::lock_guard lock(mutex);
    expected[context.rank()] = text;
  });
  const MpiRun ranks;
  EXPECT_EQ(ranks.run("MpiHostsRank.DoesEverything", "TESSERA_BOOTSTRAP=mpi"), 0) << ranks.output();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_GT(expected[rank].size(), 1000u);
    EXPECT_TRUE(ranks.said(rank) == expected[rank]) << "rank " << rank << "\n" << ranks.output();
  }
}

TEST(MpiHosts, AProgramMayUseMpiItself) {
  if (in_mpirun()) return;
  if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const MpiRun ranks;
  EXPECT_EQ(ranks.run("MpiHostsRank.OfAProgramThatUsesMpi"), 0) << ranks.output();
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.said(rank), "done");
}

TEST(MpiHosts, RanksThatDifferFromMpisAndOneThreadAreRefused) {
  if (in_mpirun()) return;
  if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const MpiRun ranks;
  EXPECT_EQ(ranks.run("MpiHostsRank.IsRefused"), 0) << ranks.output();
  for (int rank = 0; rank < 4; ++rank) {
    tessera::testing::expect_parts(
        ranks.said(rank), {"code 3: rank 0 of 4 is rank 2 of 4 for Open MPI", "mpirun", "shm+tcp",
                           "code 3: rank 0: Open MPI", "one thread only", "MPI_THREAD_MULTIPLE"});
  }
}

TEST(MpiHosts, OtherBackendsAndLibrariesAreRefused) {
  if (in_mpirun()) return;
  const auto refusal = [](const char* variable, const char* value) {
    setenv("TESSERA_BACKEND", "shm+mpi", 1);
    setenv(variable, value, 1);
    std::string text;
    try {
      connect(tessera::testing::world_on_hosts({1, 1}, 0, tessera::testing::job_port()));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration) << error.what();
      text = error.what();
    }
    unsetenv(variable);
    unsetenv("TESSERA_BACKEND");
    return text;
  };
  tessera::testing::expect_parts(refusal("TESSERA_BACKEND", "shm+pigeons"),
                                 {"TESSERA_BACKEND is 'shm+pigeons'", "shm+tcp or shm+mpi"});
  tessera::testing::expect_parts(
      refusal("TESSERA_MPI_LIBRARY", "libnowhere.so.7"),
      {"shm+mpi needs MPI's library", "libnowhere.so.7", "TESSERA_MPI_LIBRARY", "shm+tcp"});
  tessera::testing::expect_parts(refusal("TESSERA_MPI_LIBRARY", "libm.so.6"),
                                 {"neither Open MPI's nor MPICH's", "TESSERA_MPI_LIBRARY"});
}

}  // namespace
}  // namespace tessera::comm
