// The world from the environment: every launcher's variables, and every way to get them wrong.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "kernels/base/error.h"
#include "sharding/comm/timeout.h"
#include "sharding/comm/world.h"
#include "support/expect_parts.h"

namespace tessera::comm {
namespace {

using tessera::testing::expect_parts;
using Environment = std::map<std::string, std::string>;

constexpr const char* known[] = {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "TESSERA_RUN_ID",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_NTASKS_PER_NODE",
                                 "SLURM_JOB_ID",
                                 "TESSERA_COMM_TIMEOUT",
                                 "TESSERA_STANDSTILL_TIMEOUT"};

class WorldFromEnvironment : public ::testing::Test {
 protected:
  static World world(const Environment& environment) {
    for (const char* name : known) unsetenv(name);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    return world_from_environment();
  }
  static std::string error(const Environment& environment) {
    try {
      world(environment);
      collective_timeout({});
      standstill_timeout();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration);
      return error.what();
    }
    return "no error";
  }
  void TearDown() override {
    for (const char* name : known) unsetenv(name);
  }
};

TEST_F(WorldFromEnvironment, NothingIsOneRank) {
  const World one = world({});
  EXPECT_EQ(one.rank, 0);
  EXPECT_EQ(one.size, 1);
  EXPECT_EQ(one.local_size, 1);
  EXPECT_EQ(one.master_address, "127.0.0.1");
  EXPECT_EQ(one.master_port, 29500);
  EXPECT_EQ(one.run_id, "");
}

TEST_F(WorldFromEnvironment, Torchrun) {
  const World torchrun = world({{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"MASTER_ADDR", "node7"},
                                {"MASTER_PORT", "1234"},
                                {"TORCHELASTIC_RUN_ID", "abc"},
                                {"OMPI_COMM_WORLD_RANK", "3"}});
  EXPECT_EQ(torchrun.rank, 5);
  EXPECT_EQ(torchrun.size, 8);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.local_size, 4);
  EXPECT_EQ(torchrun.master_address, "node7");
  EXPECT_EQ(torchrun.master_port, 1234);
  EXPECT_EQ(torchrun.run_id, "abc");
}

TEST_F(WorldFromEnvironment, RankAndSizeAloneAreOneHost) {
  const World two = world({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(two.local_rank, 1);
  EXPECT_EQ(two.local_size, 2);
}

TEST_F(WorldFromEnvironment, OpenMpiAndSlurm) {
  const World openmpi = world({{"OMPI_COMM_WORLD_RANK", "2"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(openmpi.rank, 2);
  EXPECT_EQ(openmpi.local_rank, 0);
  EXPECT_EQ(openmpi.local_size, 2);
  const World slurm = world({{"SLURM_PROCID", "3"},
                             {"SLURM_NTASKS", "4"},
                             {"SLURM_LOCALID", "3"},
                             {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(slurm.rank, 3);
  EXPECT_EQ(slurm.size, 4);
  EXPECT_EQ(slurm.local_rank, 3);
  EXPECT_EQ(slurm.run_id, "77");
  EXPECT_EQ(world({{"SLURM_NTASKS", "4"}}).size, 1);  // a batch script, not a task
}

TEST_F(WorldFromEnvironment, MissingPartnersAreNamed) {
  expect_parts(error({{"RANK", "0"}}), {"RANK is set", "WORLD_SIZE is not"});
  expect_parts(error({{"WORLD_SIZE", "2"}}), {"WORLD_SIZE is set", "RANK is not"});
  expect_parts(error({{"OMPI_COMM_WORLD_RANK", "0"}}), {"OMPI_COMM_WORLD_SIZE is not"});
}

TEST_F(WorldFromEnvironment, WrongValuesAreNamed) {
  expect_parts(error({{"RANK", "zero"}, {"WORLD_SIZE", "2"}}), {"RANK='zero'", "whole number"});
  expect_parts(error({{"RANK", "1.5"}, {"WORLD_SIZE", "2"}}), {"RANK='1.5'"});
  expect_parts(error({{"RANK", " 1"}, {"WORLD_SIZE", "2"}}), {"RANK=' 1'"});
  expect_parts(error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), {"RANK=2", "0 to 1"});
  expect_parts(error({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), {"RANK=-1", "0 to 1"});
  expect_parts(error({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"});
  expect_parts(error({{"RANK", "0"}, {"WORLD_SIZE", "99999999999999999999"}}),
               {"WORLD_SIZE=99999999999999999999", "out of range"});
  expect_parts(error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}),
               {"LOCAL_WORLD_SIZE=3", "1 to 2"});
  expect_parts(error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}), {"LOCAL_RANK=2"});
  expect_parts(error({{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000", "1 to 65535"});
  expect_parts(error({{"TESSERA_COMM_TIMEOUT", "soon"}}), {"TESSERA_COMM_TIMEOUT='soon'"});
}

TEST_F(WorldFromEnvironment, TimeoutOfCollectives) {
  world({});
  EXPECT_EQ(collective_timeout({}), std::chrono::seconds(300));
  EXPECT_EQ(collective_timeout({.collective_timeout = std::chrono::milliseconds(7)}),
            std::chrono::milliseconds(7));
  world({{"TESSERA_COMM_TIMEOUT", "12"}});
  EXPECT_EQ(collective_timeout({}), std::chrono::seconds(12));
}

TEST_F(WorldFromEnvironment, TimeoutOfRanksThatDoNotMove) {
  world({});
  EXPECT_EQ(standstill_timeout(), std::chrono::seconds(5));
  EXPECT_EQ(standstill_timeout({.standstill_timeout = std::chrono::milliseconds(7)}),
            std::chrono::milliseconds(7));
  world({{"TESSERA_STANDSTILL_TIMEOUT", "12"}});
  EXPECT_EQ(standstill_timeout(), std::chrono::seconds(12));
  for (const char* wrong : {"soon", "0", "-1", "2.5", "1000001"}) {
    expect_parts(error({{"TESSERA_STANDSTILL_TIMEOUT", wrong}}), {"TESSERA_STANDSTILL_TIMEOUT="});
  }
}

}  // namespace
}  // namespace tessera::comm
