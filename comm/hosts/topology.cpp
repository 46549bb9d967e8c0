// Counterparts.
#include "comm/hosts/topology.h"

#include <algorithm>
#include <map>

namespace tessera::comm {

Topology::Topology(const std::vector<int>& host_of, int own_rank)
    : own_rank_(own_rank), host_of_(host_of.size()), place_of_(host_of.size()) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const int number =
        numbers.emplace(host_of[rank], static_cast<int>(numbers.size())).first->second;
    if (static_cast<std::size_t>(number) == hosts_.size()) hosts_.emplace_back();
    auto& members = hosts_[static_cast<std::size_t>(number)];
    host_of_[rank] = number;
    place_of_[rank] = static_cast<int>(members.size());
    members.push_back(static_cast<int>(rank));
  }
  for (int host = 0; host < hosts(); ++host) {
    if (host != own_host()) counterparts_.push_back(counterpart(own_rank, host));
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool is_client =
        this->host_of(rank) != own_host() && counterpart(rank, own_host()) == own_rank;
    if (is_client) clients_.push_back(rank);
  }
}

int Topology::counterpart(int rank, int host) const {
  const auto& members = ranks_of(host);
  return members[static_cast<std::size_t>(place_of(rank)) % members.size()];
}

std::vector<int> Topology::peers() const {
  std::vector<int> all = counterparts_;
  all.insert(all.end(), clients_.begin(), clients_.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace tessera::comm
