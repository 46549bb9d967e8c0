// Other frameworks that train the recipe's model, as Python scripts: the list of them, their names
// for our strategies, and one run of a script.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/harness/grid.h"
#include "bench/harness/process.h"
#include "bench/harness/row.h"

namespace tessera::bench {

struct PeerOptions {
  std::string python = "python3";
  std::string scripts;  // the folder; empty: the source tree's, or the installed one
};

// Throws Error(usage) for an unknown name.
void check_peers(const std::vector<std::string>& names);
// The folder of the scripts; Error(configuration) if the folder or a script is missing.
std::filesystem::path peer_scripts(const PeerOptions& options,
                                   const std::vector<std::string>& names);
// The peer's names for the row's strategy; empty if it has no counterpart. With `wanted`, only
// those in this list; without it, nn.DataParallel is left out on CPUs, because it needs devices.
std::vector<std::string> peer_modes(const std::string& peer, const BenchRow& own,
                                    const std::vector<std::string>& wanted);
// All modes of the peers, for messages.
std::vector<std::string> all_peer_modes(const std::vector<std::string>& names);
std::string peer_backend(const BenchRow& own);
std::string peer_launcher(const BenchPeer& peer, int world_size);

// The reason why this Python cannot run the peer: "PYTHON has no module torch; ...". Empty: it can.
std::string peer_unavailable(const PeerOptions& options, const std::string& peer,
                             BenchProcesses& processes);

struct PeerJob {
  std::int64_t steps = 1, warmup = 3;
  int threads_per_rank = 1;
  std::filesystem::path program;  // `tessera`
  std::filesystem::path weights;  // the folder with the initial weights of Tessera's run
  std::filesystem::path folder;   // for the files of the call
  double seconds = 600;           // it is killed after this time
};
// Runs one round of the peer.
RowRound run_peer(const PeerOptions& options, const BenchRow& row, const PeerJob& job,
                  BenchProcesses& processes);

// The reason why the losses are not those of the same training; empty: they agree.
std::string losses_differ(const std::vector<double>& own, const std::vector<double>& peer,
                          const std::string& precision);

}  // namespace tessera::bench
