// Training on a GPU with masters, gradients and moments on its host, compared with training without
// offload.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/device_under_test.h"
#include "sharding/strategies/strategy_bits.h"

namespace tessera::testing {

// A piece size of which the toy's shards need several.
inline OffloadOptions placed(Placement parameters, Placement gradients, Placement optimizer) {
  OffloadOptions options;
  options.parameters = parameters;
  options.gradients = gradients;
  options.optimizer = optimizer;
  options.piece_bytes = 4096;
  return options;
}

// The first one has all state on the host.
inline std::vector<OffloadOptions> placements() {
  std::vector<OffloadOptions> all;
  const auto place = [](int bit) { return bit != 0 ? Placement::host : Placement::device; };
  for (int bits = 7; bits > 0; --bits)
    all.push_back(placed(place(bits & 1), place(bits & 2), place(bits & 4)));
  return all;
}

inline std::string placements_of(const OffloadOptions& options) {
  std::string text;
  for (const Placement placement : {options.parameters, options.gradients, options.optimizer})
    text += " " + std::string(name_of(placement));
  return text;
}

class OffloadOnDevice : public ::testing::Test {
  const AccessChecking access_checking_;
};

inline void expect_offload_keeps_bits(int world, ShardingOptions options, TrainingCase what,
                                      const std::vector<OffloadOptions>& offloads) {
  what.device = Device::cuda();
  what.batch = 1;
  what.steps = 2;
  const Trajectory expected = train_toy(world, options, what);
  for (const OffloadOptions& offload : offloads) {
    options.offload = offload;
    EXPECT_TRUE(same_bits(expected, train_toy(world, options, what)))
        << describe(options) << " on " << world << " ranks, " << what.name << ", offload"
        << placements_of(offload);
  }
}

}  // namespace tessera::testing
