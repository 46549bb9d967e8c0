// The command line of `tessera bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/run.h"
#include "cli/command.h"

namespace tessera::cli {

struct BenchLists {
  std::vector<std::string> strategies, precisions, prefetch, offload, checkpointing, axes;
  std::vector<std::int64_t> world_sizes, batch_sizes;
};

struct BenchOptions {
  std::string file, config_file, json, html, compare, device, device_memory, products;
  std::vector<std::string> overrides, peer_modes, peers;
  BenchLists lists;
  bench::BenchSettings settings;
  int threads_per_rank = 0;
  bool again = false, peer_compile = false, fill_cores = false;
};

// The targets are in `options`, which must outlive them.
std::vector<Argument> bench_arguments(BenchOptions& options);

}  // namespace tessera::cli
