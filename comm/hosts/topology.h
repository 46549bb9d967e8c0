// Which ranks of a communicator share a host, and what follows: who talks to whom.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera::comm {

// Ranks are those of the communicator, 0 to size - 1.
class Topology {
 public:
  // `host_of` names each rank's host by some number.
  Topology(const std::vector<int>& host_of, int own_rank);

  [[nodiscard]] int ranks() const { return static_cast<int>(host_of_.size()); }
  [[nodiscard]] int hosts() const { return static_cast<int>(hosts_.size()); }
  [[nodiscard]] int own_host() const { return host_of(own_rank_); }
  // Hosts in the order of their first ranks; the ranks of each in order.
  [[nodiscard]] const std::vector<int>& ranks_of(int host) const {
    return hosts_[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  // A rank's place among those of its host.
  [[nodiscard]] int place_of(int rank) const { return place_of_[static_cast<std::size_t>(rank)]; }

  // The rank of `host` that `rank` of another host deals with, for all of that host.
  [[nodiscard]] int counterpart(int rank, int host) const;
  // On every other host, in order: this rank's counterparts.
  [[nodiscard]] const std::vector<int>& counterparts() const { return counterparts_; }
  // Ranks of other hosts whose counterpart this one is, in order.
  [[nodiscard]] const std::vector<int>& clients() const { return clients_; }
  // Both of them: to whom connections are needed.
  [[nodiscard]] std::vector<int> peers() const;

 private:
  int own_rank_;
  std::vector<int> host_of_, place_of_;
  std::vector<std::vector<int>> hosts_;
  std::vector<int> counterparts_, clients_;
};

}  // namespace tessera::comm
