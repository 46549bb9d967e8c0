// Measuring the machine at hand: the kernels of small trainings timed one by one as they run, with
// one rank and with a rank on every core, and the ways between ranks and to the disk.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "sharding/plan/cluster.h"

namespace tessera::cli {

struct CalibrationOptions {
  std::filesystem::path folder;  // for temporary files, on the disk that is measured
  int steps = 4;                 // of each training that are timed
  std::function<void(const std::string&)> progress;
};

// Of CPUs. Takes about a minute on two cores; nothing else should run meanwhile.
Cluster calibrate(const CalibrationOptions& options);

}  // namespace tessera::cli
