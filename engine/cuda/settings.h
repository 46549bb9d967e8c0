// Environment variables for GPUs. Only this file reads them.
#pragma once

#include <cstddef>
#include <optional>

namespace tessera::cuda {

struct Settings {
  // TESSERA_CUDA_MEMORY: the size of a device's arena in bytes ("8000000000", "512M", "40G"), or a
  // fraction of the memory that is free at first use ("0.5"). Processes that share a GPU must set
  // it.
  std::optional<std::size_t> memory_bytes;
  double memory_fraction = 0.9;
};

// Throws Error(configuration) for a value that does not parse.
Settings read_settings();

}  // namespace tessera::cuda
