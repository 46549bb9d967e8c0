// TESSERA_BOOTSTRAP=mpi: ranks that mpirun started find each other through MPI.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "comm/control/bootstrap.h"
#include "comm/world.h"
#include "support/sanitizers.h"

namespace tessera::comm::control {
namespace {

using namespace std::chrono_literals;

constexpr const char* inside = "TESSERA_TEST_INSIDE_MPIRUN";

// The test that each rank runs; the other test starts the ranks.
TEST(MpiBootstrap, Rank) {
  if (std::getenv(inside) == nullptr) GTEST_SKIP() << "runs inside mpirun: see the test below";
  const World world = world_from_environment();
  ASSERT_EQ(world.size, 2);
  const ControlPlane plane = connect_control_plane(world, {30s, 60s});
  HubGroup group(plane.control, {0, 1}, 1, "world");
  const auto all = group.exchange(Call(Op::exchange, {}), std::to_string(world.rank));
  EXPECT_EQ(all, (std::vector<std::string>{"0", "1"}));
}

TEST(MpiBootstrap, TwoProcesses) {
  if (std::getenv(inside) != nullptr) return;  // this is a rank
  if (testing::address_sanitizer || testing::thread_sanitizer) {
    GTEST_SKIP() << "OpenMPI leaks memory and has locks that the sanitizers report";
  }
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "mpirun is missing (Debian package openmpi-bin)";
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  // The ranks write no test report: it would overwrite this one's.
  const std::string command =
      std::string("env -u TESSERA_TEST_REPORTS -u RANK -u WORLD_SIZE TESSERA_BOOTSTRAP=mpi ") +
      inside +
      "=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 " +
      self + " --gtest_filter=MpiBootstrap.Rank";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << command;
}

}  // namespace
}  // namespace tessera::comm::control
