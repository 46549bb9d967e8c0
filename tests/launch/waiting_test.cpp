// Waiting ranks and launchers report for whom they wait, where and until when.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "support/free_port.h"
#include "tests/cli/program_testing.h"

namespace tessera::launcher {
namespace {

using std::chrono::seconds;
using testing::eventually;
using testing::free_port;
using testing::Program;
using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

constexpr const char* waiters_key = "the-key-of-this-test";

std::unique_ptr<Program> launcher(int node, int nodes, int port,
                                  const std::string& address = "127.0.0.1") {
  return std::make_unique<Program>(
      Words{"launch", "--nnodes", std::to_string(nodes), "--node-rank", std::to_string(node),
            "--master-addr", address, "--master-port", std::to_string(port), "--", "true"},
      Environment{{"TESSERA_JOB_KEY", waiters_key}});
}

// One of two ranks, on one host or each on its own host.
std::unique_ptr<Program> rank_alone(int rank, int hosts, int port,
                                    const std::string& address = "127.0.0.1") {
  return std::make_unique<Program>(
      Words{"test", "--rank"}, Environment{{"RANK", std::to_string(rank)},
                                           {"WORLD_SIZE", "2"},
                                           {"LOCAL_RANK", hosts == 1 ? std::to_string(rank) : "0"},
                                           {"LOCAL_WORLD_SIZE", hosts == 1 ? "2" : "1"},
                                           {"GROUP_RANK", hosts == 1 ? "0" : std::to_string(rank)},
                                           {"GROUP_WORLD_SIZE", std::to_string(hosts)},
                                           {"MASTER_ADDR", address},
                                           {"MASTER_PORT", std::to_string(port)},
                                           {"TESSERA_JOB_KEY", waiters_key}});
}

void expect_waits(const Program& program, const std::string& said) {
  const bool it_does =
      eventually([&] { return program.err().find("tessera: " + said) != std::string::npos; });
  EXPECT_TRUE(it_does) << said << " is not in: " << program.err();
}

// The message is printed once, and the waiting continues.
TEST(Waiting, LaunchersReportForWhom) {
  const int of_first = free_port(), of_second = free_port();
  const auto first = launcher(0, 3, of_first);
  const auto second = launcher(1, 2, of_second);
  expect_waits(*first, "node 0 waits for the launcher of node(s) 1, 2 of 3 at 127.0.0.1 port " +
                           std::to_string(of_first + 1) + "; it gives up in 59");
  expect_waits(*second, "node 1 waits for node 0's launcher at 127.0.0.1 port " +
                            std::to_string(of_second + 1) +
                            " (no program listens there); it gives up in 59");
  const std::string said = second->err();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const auto leader = launcher(0, 2, of_second);
  EXPECT_EQ(leader->wait(), 0) << leader->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST(Waiting, RanksReportForWhom) {
  const int here_0 = free_port(), here_1 = free_port();
  const int there_0 = free_port(), there_1 = free_port();
  const auto rank_0 = rank_alone(0, 1, here_0);
  const auto rank_1 = rank_alone(1, 1, here_1);
  const auto rank_0_of_hosts = rank_alone(0, 2, there_0);
  const auto rank_1_of_hosts = rank_alone(1, 2, there_1);
  const auto here = [](int port) {
    return "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) +
           " on this host; it gives up in 5";
  };
  expect_waits(*rank_0, "rank 0 waits for rank 1 of 2 at " + here(here_0));
  expect_waits(*rank_1, "rank 1 waits for rank 0 at " + here(here_1));
  expect_waits(*rank_0_of_hosts, "rank 0 waits for rank(s) 1 of 2; it gives up in 5");
  expect_waits(*rank_1_of_hosts,
               "rank 1 waits for rank 0 at 127.0.0.1 port " + std::to_string(there_1));
}

TEST(Waiting, AnInvalidAddressIsNotWaitedFor) {
  const std::string none = "no_such_host.invalid";
  std::vector<std::unique_ptr<Program>> programs;
  for (const int number : {0, 1}) {
    programs.push_back(launcher(number, 2, free_port(), none));
    programs.push_back(rank_alone(number, 2, free_port(), none));
  }
  for (const auto& program : programs) {
    EXPECT_EQ(program->wait(seconds(20)), 3) << program->err();
    EXPECT_NE(program->err().find("rank 0's host '" + none + "' has no address: "),
              std::string::npos)
        << program->err();
  }
}

}  // namespace
}  // namespace tessera::launcher
