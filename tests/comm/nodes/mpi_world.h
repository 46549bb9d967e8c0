// Ranks that mpirun starts on this machine, as if on several hosts. Each rank runs one test of this
// program and writes its result to a file.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "comm/nodes/nodes_world.h"
#include "comm/world.h"
#include "support/sanitizers.h"

namespace tessera::testing {

inline constexpr const char* mpi_folder_variable = "TESSERA_TEST_MPI_FOLDER";

inline bool in_mpirun() {
  return std::getenv(mpi_folder_variable) != nullptr;
}

// The reason why ranks cannot be started; empty if they can.
inline std::string no_mpirun() {
  if (address_sanitizer || thread_sanitizer) {
    return "Open MPI leaks memory and has locks that the sanitizers report";
  }
  const bool missing = std::system("command -v mpirun > /dev/null 2>&1") != 0;
  return missing ? "mpirun is missing (Debian package openmpi-bin)" : "";
}

// ---- for the test that starts ranks

class MpiRun {
 public:
  MpiRun() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("tessera-mpi-" + std::to_string(getpid()) + "-" + test->name());
    std::filesystem::create_directories(folder_);
  }
  ~MpiRun() { std::filesystem::remove_all(folder_); }
  MpiRun(const MpiRun&) = delete;
  MpiRun& operator=(const MpiRun&) = delete;

  // Runs the test on each of four ranks with this environment. Returns mpirun's exit status.
  int run(const std::string& test, const std::string& environment = "",
          const std::string& before_end = "") const {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    std::ostringstream command;
    // The ranks write no test report: it would overwrite this one's. Their output is kept in case
    // one fails.
    command << "env -u TESSERA_TEST_REPORTS -u RANK -u WORLD_SIZE OMPI_ALLOW_RUN_AS_ROOT=1 "
            << "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TESSERA_BACKEND=shm+mpi TESSERA_JOB_KEY=none "
            << "TESSERA_HOST_ADDRESS=127.0.0.1 MASTER_ADDR=127.0.0.1 MASTER_PORT=" << job_port()
            << " " << mpi_folder_variable << "=" << folder_.string() << " " << environment
            << " timeout -k 1 100 mpirun --oversubscribe --bind-to none -n 4 sh -c '" << self
            << " --gtest_filter=" << test << "; code=$?; " << before_end << " exit $code' > "
            << (folder_ / "output").string() << " 2>&1";
    const int status = std::system(command.str().c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  [[nodiscard]] std::string said(int rank) const { return read(std::to_string(rank)); }
  [[nodiscard]] std::string output() const { return read("output"); }
  [[nodiscard]] std::filesystem::path folder() const { return folder_; }

 private:
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
};

// ---- for the ranks

// Two hosts of two ranks. The launcher's node numbers distinguish the hosts.
inline comm::World world_under_mpirun() {
  const char* of_open_mpi = std::getenv("OMPI_COMM_WORLD_RANK");
  const int rank = std::atoi(of_open_mpi != nullptr ? of_open_mpi : std::getenv("PMI_RANK"));
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "4", 1);
  setenv("LOCAL_RANK", std::to_string(rank % 2).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("GROUP_RANK", std::to_string(rank / 2).c_str(), 1);
  return comm::world_from_environment();
}

inline void say_from_rank(const comm::World& world, const std::string& text) {
  const std::filesystem::path folder = std::getenv(mpi_folder_variable);
  const std::filesystem::path partial = folder / (std::to_string(world.rank) + ".partial");
  std::ofstream(partial) << text;
  std::filesystem::rename(partial, folder / std::to_string(world.rank));
}

}  // namespace tessera::testing
