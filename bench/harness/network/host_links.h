// The network between the hosts of a job, pair by pair, through the transport of its training.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "sharding/plan/cluster.h"

namespace tessera::bench {

// A pair of hosts, by their numbers; first < second.
struct HostLink {
  int first = 0, second = 0;
  double latency_s = 0;        // half of the median round trip of 8 bytes
  double there = 0, back = 0;  // bytes a second from `first` to `second`, and from there to it
};

// Collective: the links of all pairs, in order, the same on every rank. host_of_rank numbers the
// hosts from 0 on. The first rank of each host measures, the others wait. The pairs are formed in
// rounds in which each host is in one pair; the pairs of a round measure at the same time, as hosts
// do in training. A pair takes about a second.
std::vector<HostLink> measure_host_links(comm::Communicator& communicator,
                                         const std::vector<int>& host_of_rank);

// The links of which a direction has less than this share of the expected rate, or that take more
// than twice the expected latency and 20 us, in words; then the hosts all of whose links are slow
// (with three hosts or more). Expected is what `link` says, or else the median of all links.
inline constexpr double usual_share = 0.7;
std::vector<std::string> slow_links(const std::vector<HostLink>& links,
                                    const std::vector<std::string>& host_names,
                                    const std::optional<Link>& link);

}  // namespace tessera::bench
