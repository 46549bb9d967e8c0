// Ranks over the emulated NCCL: threads of this process that find each other as processes would.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/connect.h"
#include "cuda/device_under_test.h"
#include "engine/device/backend.h"
#include "support/free_port.h"

namespace tessera::testing {

inline comm::World world_of(int rank, int size, int port) {
  comm::World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.master_port = port;
  world.run_id = "nccl test " + std::to_string(getpid());
  return world;
}

// Runs fn on every rank but `absent` and returns each rank's failure ("" for none). `functions`
// replace NCCL's own.
inline std::vector<std::string> run_nccl(
    int ranks, const std::function<void(const std::shared_ptr<comm::Communicator>&)>& fn,
    comm::ConnectOptions options = {}, int absent = -1,
    const cuda::NcclFunctions* functions = nullptr) {
  const NcclUnderTest nccl = nccl_under_test(ranks);
  EXPECT_EQ(nccl.missing, "");
  if (nccl.functions == nullptr) return {};
  if (functions == nullptr) functions = nccl.functions;
  const int port = free_port();
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  comm::keep_nccl_ports_on_this_node(world_of(0, ranks, port));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == absent) continue;
    threads.emplace_back([&, rank, options]() mutable {
      try {
        options.device = nccl_device(rank);
        const auto communicator =
            comm::connect_nccl_with(*functions, world_of(rank, ranks, port), options);
        try {
          fn(communicator);
        } catch (const std::exception& error) {
          communicator->abort(error.what());
          throw;
        }
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();  // joins
  return failures;
}

// Skips a test where NCCL cannot connect so many ranks.
#define TESSERA_NEEDS_NCCL(ranks)                                                            \
  if (const std::string missing = testing::nccl_under_test(ranks).missing; !missing.empty()) \
  GTEST_SKIP() << missing

inline void expect_no_failure(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace tessera::testing
