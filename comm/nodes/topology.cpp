// Counterparts.
#include "comm/nodes/topology.h"

#include <algorithm>
#include <map>

namespace tessera::comm {

Topology::Topology(const std::vector<int>& node_of, int own_rank)
    : own_rank_(own_rank), node_of_(node_of.size()), place_of_(node_of.size()) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    const int number =
        numbers.emplace(node_of[rank], static_cast<int>(numbers.size())).first->second;
    if (static_cast<std::size_t>(number) == nodes_.size()) nodes_.emplace_back();
    auto& members = nodes_[static_cast<std::size_t>(number)];
    node_of_[rank] = number;
    place_of_[rank] = static_cast<int>(members.size());
    members.push_back(static_cast<int>(rank));
  }
  for (int node = 0; node < nodes(); ++node) {
    if (node != own_node()) counterparts_.push_back(counterpart(own_rank, node));
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool is_client =
        this->node_of(rank) != own_node() && counterpart(rank, own_node()) == own_rank;
    if (is_client) clients_.push_back(rank);
  }
}

int Topology::counterpart(int rank, int node) const {
  const auto& members = ranks_of(node);
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
