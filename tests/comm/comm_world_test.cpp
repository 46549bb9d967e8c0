// The world from the environment: the variables of every launcher, and all wrong combinations.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/error.h"
#include "comm/timeout.h"
#include "comm/world.h"
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
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 "MPI_LOCALRANKID",
                                 "MPI_LOCALNRANKS",
                                 "GROUP_RANK",
                                 "GROUP_WORLD_SIZE",
                                 "PMIX_NAMESPACE",
                                 "SLURM_NNODES",
                                 "SLURM_NODEID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_NODES",
                                 "SLURM_STEP_NODELIST",
                                 "SLURM_STEP_TASKS_PER_NODE",
                                 "SLURM_TASKS_PER_NODE",
                                 "SLURM_JOB_NODELIST",
                                 "SLURM_NODELIST",
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

TEST_F(WorldFromEnvironment, WithoutVariablesItIsOneRank) {
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

// MPICH's mpirun may have started its daemons on the nodes by srun, whose tasks are then not the
// ranks; and srun's own ranks also have the first of these variables.
TEST_F(WorldFromEnvironment, MpichBesideSlurm) {
  const World mpich = world({{"PMI_RANK", "5"},
                             {"PMI_SIZE", "8"},
                             {"MPI_LOCALRANKID", "1"},
                             {"MPI_LOCALNRANKS", "4"},
                             {"SLURM_PROCID", "1"},
                             {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(mpich.rank, 5);
  EXPECT_EQ(mpich.size, 8);
  EXPECT_EQ(mpich.local_rank, 1);
  EXPECT_EQ(mpich.local_size, 4);
  EXPECT_EQ(mpich.nodes, 2);
  const World slurm = world({{"PMI_RANK", "3"},
                             {"PMI_SIZE", "4"},
                             {"SLURM_PROCID", "3"},
                             {"SLURM_NTASKS", "4"},
                             {"SLURM_LOCALID", "1"},
                             {"SLURM_STEP_NUM_NODES", "2"},
                             {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}});
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_EQ(slurm.local_size, 2);
}

// Three nodes with 2, 2 and 1 tasks, in a job that has more nodes than the step.
TEST_F(WorldFromEnvironment, SlurmOverSeveralNodes) {
  const Environment step{{"SLURM_NTASKS", "5"},
                         {"SLURM_NNODES", "8"},
                         {"SLURM_STEP_NUM_NODES", "3"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                         {"SLURM_TASKS_PER_NODE", "4(x8)"},
                         {"SLURM_STEP_NODELIST", "gpu[07-08,11],login"},
                         {"SLURM_JOB_NODELIST", "cpu1,gpu[07-12]"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "3"}};
  const auto task = [&](const char* rank, const char* node, const char* local) {
    Environment here = step;
    here.insert({{"SLURM_PROCID", rank}, {"SLURM_NODEID", node}, {"SLURM_LOCALID", local}});
    return world(here);
  };
  const World second = task("3", "1", "1");
  EXPECT_EQ(second.rank, 3);
  EXPECT_EQ(second.local_rank, 1);
  EXPECT_EQ(second.local_size, 2);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.nodes, 3);
  EXPECT_EQ(second.master_address, "gpu07");
  EXPECT_EQ(second.run_id, "77.3");
  const World last = task("4", "2", "0");
  EXPECT_EQ(last.local_size, 1);
  EXPECT_EQ(last.local_rank, 0);
  EXPECT_EQ(last.node_rank, 2);
}

TEST_F(WorldFromEnvironment, SlurmsListsOfHosts) {
  const auto first = [&](const char* list) {
    return world({{"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "2"},
                  {"SLURM_NNODES", "2"},
                  {"SLURM_NODEID", "1"},
                  {"SLURM_JOB_NODELIST", list}})
        .master_address;
  };
  EXPECT_EQ(first("a,b"), "a");
  EXPECT_EQ(first("node[3-4]"), "node3");
  EXPECT_EQ(first("r[01]n[2-9]"), "r01n2");
  EXPECT_EQ(first("n[007,9].site,x[1-2]"), "n007.site");
  EXPECT_EQ(first("one,n[1-2]"), "one");
  const World given = world({{"SLURM_PROCID", "1"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_NNODES", "2"},
                             {"SLURM_NODEID", "1"},
                             {"SLURM_JOB_NODELIST", "a,b"},
                             {"MASTER_ADDR", "10.0.0.1"}});
  EXPECT_EQ(given.master_address, "10.0.0.1");
  EXPECT_EQ(given.local_size, 1);
  expect_parts(error({{"SLURM_PROCID", "1"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_NNODES", "2"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_TASKS_PER_NODE", "2"}}),
               {"SLURM_TASKS_PER_NODE='2'", "the tasks of node 1"});
}

TEST_F(WorldFromEnvironment, NodesOfTorchrunAndOpenMpi) {
  const World torchrun = world({{"RANK", "5"},
                                {"WORLD_SIZE", "7"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"}});
  EXPECT_EQ(torchrun.node_rank, 1);
  EXPECT_EQ(torchrun.nodes, 2);
  const World openmpi = world({{"OMPI_COMM_WORLD_RANK", "5"},
                               {"OMPI_COMM_WORLD_SIZE", "6"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"PMIX_NAMESPACE", "4711"}});
  EXPECT_EQ(openmpi.node_rank, 2);
  EXPECT_EQ(openmpi.nodes, 3);
  EXPECT_EQ(openmpi.run_id, "4711");
  // The third of three hosts with one, one and three ranks.
  const World uneven = world({{"RANK", "3"},
                              {"WORLD_SIZE", "5"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_WORLD_SIZE", "3"},
                              {"GROUP_RANK", "2"}});
  EXPECT_EQ(uneven.node_rank, 2);
  EXPECT_EQ(uneven.nodes, 3);
  expect_parts(
      error({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"GROUP_RANK", "1"}, {"GROUP_WORLD_SIZE", "1"}}),
      {"GROUP_RANK=1", "0 to 0"});
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

TEST_F(WorldFromEnvironment, TimeoutOfRanksWithoutProgress) {
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
