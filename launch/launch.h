// Starts N ranks of a program on this node with torchrun's environment, and ends them together;
// together with launchers on other nodes if there are several.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "comm/control/job_key.h"
#include "launch/output.h"

namespace tessera::launcher {

struct LaunchOptions {
  int ranks = 1;    // processes on this node
  int threads = 0;  // ranks that are threads of one process; they share its cores
  int nodes = 1;    // each with a launcher
  int node_rank = 0;
  int max_restarts = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: a free one; required for several nodes
  std::string run_id;   // empty: generated
  std::vector<std::string> command;
  std::map<std::string, std::string> variables;  // the ranks', beside torchrun's
  OutputOptions output;
  comm::control::JobKey job_key;
  std::chrono::milliseconds meeting{600'000};  // time for the other launchers to come
};

// Returns the exit code: 0 if every rank ended with 0; 7 if a rank was killed by a signal or
// reports that a rank was lost, or if a node was lost; else the code of the first rank that failed;
// 128 + signal if the launcher got a signal to stop and the ranks did not choose a code of their
// own. Throws Error(usage) if the program cannot be executed, and Error(configuration) if the
// requested port is taken.
int launch(const LaunchOptions& options);

// The number of cores that this process may use.
int usable_cores();

}  // namespace tessera::launcher
