// What the environment says about GPUs. Read here and nowhere else.
#pragma once

#include <cstddef>
#include <optional>

namespace tessera::cuda {

struct Settings {
  // TESSERA_CUDA_MEMORY: the size of a device's arena in bytes ("8000000000", "512M", "40G"), or as
  // a fraction of what is free when it is first used ("0.5"). Processes that share a GPU need it.
  std::optional<std::size_t> memory_bytes;
  double memory_fraction = 0.9;
};

// Error(configuration) for a value that cannot be read.
Settings read_settings();

}  // namespace tessera::cuda
