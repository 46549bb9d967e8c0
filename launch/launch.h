// Starts N ranks of a program on this machine with torchrun's environment, and ends them together;
// with launchers on other hosts, those of all hosts.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "comm/control/job_key.h"
#include "launch/output.h"

namespace tessera::cli {

struct LaunchOptions {
  int ranks = 1;    // processes on this host
  int threads = 0;  // that are the ranks of one process; they share the cores
  int nodes = 1;    // hosts, each with a launcher
  int node_rank = 0;
  int max_restarts = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;    // 0: a free one; on several hosts it is given
  std::string run_id;     // empty: made up
  std::string launch_id;  // made up by launch(), the same for all restarts
  std::vector<std::string> command;
  std::map<std::string, std::string> variables;  // of the ranks, beside torchrun's
  OutputOptions output;
  comm::control::JobKey job_key;
  std::chrono::milliseconds meeting{600'000};  // for the other launchers to come
};

// Returns the exit code: 0 when every rank ended with 0; 7 when a rank was killed by a signal or
// says so itself, or a host was lost; else that of the first rank that failed; 128 + signal when
// the launcher was told to stop and the ranks did not choose a code of their own. Throws
// Error(usage) when the program cannot be executed, Error(configuration) when the port that is
// asked for is taken.
int launch(const LaunchOptions& options);

// Cores that this process may use.
int usable_cores();

}  // namespace tessera::cli
