// Worlds of several hosts on one machine: ranks with different node numbers, which reach each other
// over TCP at 127.0.0.1.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/world.h"
#include "engine/device/device.h"
#include "support/free_port.h"

namespace tessera::testing {

// The number of ranks of each host.
using Hosts = std::vector<int>;

inline int ranks_of(const Hosts& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0);
}

// A free port for a job without a key, if the test has not set one.
inline int job_port() {
  setenv("TESSERA_JOB_KEY", "none", 0);
  return free_port();
}

inline comm::World world_on_hosts(const Hosts& hosts, int rank, int port) {
  int node = 0, first = 0;
  while (rank >= first + hosts[static_cast<std::size_t>(node)]) {
    first += hosts[static_cast<std::size_t>(node++)];
  }
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return {.rank = rank,
          .size = ranks_of(hosts),
          .local_rank = rank - first,
          .local_size = hosts[static_cast<std::size_t>(node)],
          .node_rank = node,
          .master_address = "127.0.0.1",
          .master_port = port,
          .run_id = std::to_string(port) + test->name()};
}

// Runs the ranks as threads, and rethrows the exception of the first rank that failed.
inline void run_on_hosts(
    const Hosts& hosts,
    const std::function<void(const comm::World&, const std::shared_ptr<comm::Communicator>&)>& fn,
    const comm::ConnectOptions& options = {}) {
  const int port = job_port();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks_of(hosts); ++rank) {
    threads.emplace_back([&, world = world_on_hosts(hosts, rank, port)] {
      set_compute_threads(1);
      std::shared_ptr<comm::Communicator> communicator;
      try {
        communicator = comm::connect(world, options);
        fn(world, communicator);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        if (communicator) communicator->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera::testing
