// Other programs that train what a recipe trains, as scripts that a Python runs: which there are,
// what each calls our strategies, and a run of one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/harness/grid.h"
#include "bench/harness/process.h"
#include "bench/harness/row.h"

namespace tessera::cli {

struct PeerOptions {
  std::string python = "python3";
  std::string scripts;  // the folder; empty: the source tree's, or the installed one
};

// Throws Error(usage) for an unknown name.
void check_peers(const std::vector<std::string>& names);
// Where their scripts are; Error(configuration) when there is no such folder, or a script missing.
std::filesystem::path peer_scripts(const PeerOptions& options,
                                   const std::vector<std::string>& names);
// What the peer calls the row's strategy; none where it has nothing like it. With `wanted`, those
// of them that it lists; else without nn.DataParallel on CPUs, where it has no devices.
std::vector<std::string> peer_modes(const std::string& peer, const BenchRow& own,
                                    const std::vector<std::string>& wanted);
// All modes of the peers, for messages.
std::vector<std::string> all_peer_modes(const std::vector<std::string>& names);
std::string peer_backend(const BenchRow& own);
std::string peer_launcher(const BenchPeer& peer, int world_size);

// Why the Python cannot run this peer: "PYTHON has no module torch; ...". Empty: it can.
std::string peer_unavailable(const PeerOptions& options, const std::string& peer,
                             BenchProcesses& processes);

struct PeerJob {
  std::int64_t steps = 1, warmup = 3;
  int threads_per_rank = 1;
  std::filesystem::path program;  // `tessera`
  std::filesystem::path weights;  // a folder: where Tessera's run begins
  std::filesystem::path folder;   // for the files of the call
  double seconds = 600;           // after which it is killed
};
// One round of the peer.
RowRound run_peer(const PeerOptions& options, const BenchRow& row, const PeerJob& job,
                  BenchProcesses& processes);

// Why the losses are not those of the same training; empty: they agree.
std::string losses_differ(const nlohmann::ordered_json& own, const nlohmann::ordered_json& peer,
                          const std::string& precision);

}  // namespace tessera::cli
