// `tessera test --hosts`: measures the network between the nodes of a job.
#pragma once

#include <string>

namespace tessera::cli {

// The work of each rank. Rank 0 prints latency and rate of each pair of nodes, and the slow ones.
// Compares with `across` of the cluster (a file or a name), or without one with the median of all
// pairs. Returns the exit code: 1 on rank 0 if a link is slow. Error(usage) in a job of one node.
int test_hosts(const std::string& cluster_name);

}  // namespace tessera::cli
