// The world of ranks that a test starts as processes of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "comm/world.h"

namespace tessera::testing {

// The world of a process that the test forked. The run has the test's name, so that tests that run
// in parallel do not connect to each other.
inline comm::World world_of_process(int rank, int size) {
  return {.rank = rank,
          .size = size,
          .local_rank = rank,
          .local_size = size,
          .run_id = std::to_string(getppid()) +
                    ::testing::UnitTest::GetInstance()->current_test_info()->name()};
}

}  // namespace tessera::testing
