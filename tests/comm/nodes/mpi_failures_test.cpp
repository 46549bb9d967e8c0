// Backend shm+mpi when a rank is killed or stopped: MPI itself would wait forever; here every other
// rank names it within seconds, and mpirun ends.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/nodes/mpi_world.h"
#include "support/expect_parts.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using tessera::testing::in_mpirun;
using tessera::testing::MpiRun;
using tessera::testing::say_from_rank;

// Gathers and sums without end, with more bytes than MPI sends at once.
void work_over_mpi(const World& world) {
  const auto ranks = connect(world);
  auto gathered = ranks->allocate("weights", std::size_t{8} << 20, Sharing::one_copy);
  auto gradients = ranks->allocate("gradients", std::size_t{4} << 20, Sharing::per_rank);
  std::vector<float> out(1 << 20);
  for (std::uint64_t step = 0;; ++step) {
    ranks->acquire(*gathered);
    ranks->all_gather(*gathered, gathered->bytes(), {.step = step, .phase = Phase::forward});
    gathered->release();
    ranks->acquire(*gradients);
    ranks->all_reduce(*gradients, 1 << 20, out.data(), {}, {.step = step, .phase = Phase::reduce});
    if (step == 3) say_from_rank(world, std::to_string(getpid()));
  }
}

TEST(MpiFailuresRank, WorksForEver) {
  if (!in_mpirun()) GTEST_SKIP() << "runs inside mpirun: see the tests below";
  signal(SIGTERM, SIG_IGN);  // mpirun sends it to the remaining ranks
  set_compute_threads(1);
  const World world = tessera::testing::world_under_mpirun();
  try {
    work_over_mpi(world);
  } catch (const Error& error) {
    say_from_rank(world, error.what());
    // Like the program: MPI is not finalised.
    std::exit(static_cast<int>(error.code()));
  }
}

// Rank 3 is the rank of the other host with which rank 1 exchanges data.
void signal_rank_3_of_mpirun(int number, const std::string& what) {
  if (in_mpirun()) return;
  if (const std::string why = tessera::testing::no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const MpiRun ranks;
  int status = 0;
  std::thread mpirun([&] {
    // mpirun kills all ranks when the first one fails, which it notices a little later.
    status = ranks.run("MpiFailuresRank.WorksForEver",
                       "TESSERA_STANDSTILL_TIMEOUT=1 OMPI_MCA_odls_base_sigkill_timeout=1",
                       "test $code = 0 || sleep 3;");
  });
  const auto said_by = [&](int first_ranks, const auto& wanted) {
    const auto deadline = Clock::now() + 30s;
    for (int rank = 0; rank < first_ranks; ++rank) {
      while (!wanted(ranks.said(rank))) {
        if (Clock::now() > deadline) return false;
        std::this_thread::sleep_for(10ms);
      }
    }
    return true;
  };
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  };
  const auto says_more = [&](const std::string& text) { return !text.empty() && !is_number(text); };
  const bool began = said_by(4, is_number);
  EXPECT_TRUE(began) << ranks.output();
  const std::string victim = ranks.said(3);
  if (began) {
    kill(std::stoi(victim), number);
    EXPECT_TRUE(said_by(3, says_more)) << ranks.output();
  }
  for (int rank = 0; rank < 3; ++rank) {
    tessera::testing::expect_parts(ranks.said(rank), {"rank 3 (pid " + victim, what});
  }
  mpirun.join();
  EXPECT_NE(status, 0);
  EXPECT_NE(status, 124) << "mpirun did not end\n" << ranks.output();
}

TEST(MpiFailures, ARankThatIsKilledIsNamedByAll) {
  signal_rank_3_of_mpirun(SIGKILL, "");
}

TEST(MpiFailures, ARankThatIsStoppedIsNamedByAll) {
  signal_rank_3_of_mpirun(SIGSTOP, "no sign of life");
}

}  // namespace
}  // namespace tessera::comm
