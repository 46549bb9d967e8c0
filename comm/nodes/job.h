// The parts that the communicators of one rank of a multi-node job share: the control plane, the
// part of the job on this node, and the locations of the ranks of other nodes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/bootstrap.h"
#include "comm/nodes/network.h"
#include "comm/shared/job.h"

namespace tessera::comm {

class NodesJob {
 public:
  // A rank of the world.
  struct Member {
    int node = 0;
    std::string name;     // "rank 3 (pid 4711 on node1)"
    std::string contact;  // for the network
  };
  NodesJob(std::shared_ptr<control::ControlPlane> plane, std::unique_ptr<Network> network,
           std::vector<Member> members, std::chrono::milliseconds timeout)
      : plane_(std::move(plane)),
        network_(std::move(network)),
        members_(std::move(members)),
        timeout_(timeout) {}
  ~NodesJob();  // leaves the network together with all ranks, unless the job has failed
  NodesJob(const NodesJob&) = delete;
  NodesJob& operator=(const NodesJob&) = delete;

  [[nodiscard]] std::string_view backend() const { return network_->backend(); }
  [[nodiscard]] control::RankControl& control() const { return *plane_->control; }
  [[nodiscard]] const Member& member(int world_rank) const {
    return members_[static_cast<std::size_t>(world_rank)];
  }
  // The longest time without progress in a collective.
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  // Collective over the ranks of a communicator: a transport from this rank to `peers`, ranks of
  // the communicator, whose numbers in the world are `world_ranks`.
  [[nodiscard]] std::unique_ptr<Transport> open(std::uint64_t channel,
                                                const std::vector<int>& peers,
                                                const std::vector<int>& world_ranks) const;

  // This rank has seen a collective fail: afterwards the network does not touch its memory.
  void give_up() const noexcept { network_->give_up(); }

  // The bytes that all communicators sent.
  void count_sent(std::uint64_t bytes) { bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t bytes_sent() const {
    return bytes_sent_.load(std::memory_order_relaxed);
  }

 private:
  std::shared_ptr<control::ControlPlane> plane_;
  std::unique_ptr<Network> network_;
  std::vector<Member> members_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t> bytes_sent_{0};
};

}  // namespace tessera::comm
