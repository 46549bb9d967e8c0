// Which ranks of a communicator share a node, and which ranks exchange messages.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera::comm {

// Ranks are those of the communicator, 0 to size - 1.
class Topology {
 public:
  // `node_of` has a number for each rank's node.
  Topology(const std::vector<int>& node_of, int own_rank);

  [[nodiscard]] int ranks() const { return static_cast<int>(node_of_.size()); }
  [[nodiscard]] int nodes() const { return static_cast<int>(nodes_.size()); }
  [[nodiscard]] int own_node() const { return node_of(own_rank_); }
  // Nodes in the order of their first ranks; the ranks of each in order.
  [[nodiscard]] const std::vector<int>& ranks_of(int node) const {
    return nodes_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  // A rank's place among those of its node.
  [[nodiscard]] int place_of(int rank) const { return place_of_[static_cast<std::size_t>(rank)]; }

  // The rank of node `node` that exchanges with `rank` of another node, for the whole node.
  [[nodiscard]] int counterpart(int rank, int node) const;
  // This rank's counterparts on every other node, in order.
  [[nodiscard]] const std::vector<int>& counterparts() const { return counterparts_; }
  // Ranks of other nodes whose counterpart this rank is, in order.
  [[nodiscard]] const std::vector<int>& clients() const { return clients_; }
  // Counterparts and clients: the ranks that need a connection.
  [[nodiscard]] std::vector<int> peers() const;

 private:
  int own_rank_;
  std::vector<int> node_of_, place_of_;
  std::vector<std::vector<int>> nodes_;
  std::vector<int> counterparts_, clients_;
};

}  // namespace tessera::comm
