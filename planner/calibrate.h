// Measures this node: it times the kernels of small trainings one by one as they run, with one rank
// and with a rank on every core, and also the links between ranks and the disk.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "sharding/plan/cluster.h"

namespace tessera::planner {

struct CalibrationOptions {
  std::filesystem::path folder;  // for temporary files, on the disk that is measured
  int steps = 4;                 // timed steps of each training
  std::function<void(const std::string&)> progress;
};

// Measures CPUs. Takes about a minute on two cores; nothing else should run at the same time.
Cluster calibrate(const CalibrationOptions& options);

}  // namespace tessera::planner
