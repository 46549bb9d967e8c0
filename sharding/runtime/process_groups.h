// The groups of ranks that a sharded model communicates in.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace tessera {

// Ranks that together hold one copy of the model are a shard group; ranks with the same shard are
// replicas of each other. A stream has communicators of its own, so that none of them waits in
// another's queue.
class ProcessGroups {
 public:
  // Collective. Makes the groups of shards, and one for each of `reshard_ranks`: the numbers of
  // ranks that units are resharded to after a forward (0 and repeated numbers make none).
  ProcessGroups(comm::Communicator& world, int shards, const std::vector<int>& reshard_ranks);

  [[nodiscard]] int world_size() const { return world_.size(); }
  [[nodiscard]] int rank() const { return world_.rank(); }
  [[nodiscard]] int shards() const { return shards_; }
  [[nodiscard]] int replicas() const { return world_size() / shards_; }
  [[nodiscard]] int replica() const { return rank() / shards_; }

  // Used on the compute stream.
  [[nodiscard]] comm::Communicator& world() const { return world_; }
  // The shard group: for parameters on the gather stream, for gradients on the reduce stream, and
  // for small messages of the compute stream.
  [[nodiscard]] comm::Communicator& gather() const { return *gather_; }
  [[nodiscard]] comm::Communicator& reduce() const { return *reduce_; }
  [[nodiscard]] comm::Communicator& control() const { return *control_; }
  // The ranks with the same shard, on the last stream that reduces.
  [[nodiscard]] comm::Communicator& across() const { return *across_; }
  // The ranks among which a unit is resharded to `ranks` ranks, on the gather stream.
  [[nodiscard]] comm::Communicator& resharded(int ranks) const { return *resharded_.at(ranks); }

  // HYBRID_*: gradients are summed within a shard group and then across groups.
  [[nodiscard]] bool sums_in_two_levels() const { return shards_ > 1 && replicas() > 1; }
  // The group whose ranks read a gradient buffer.
  [[nodiscard]] comm::Communicator& first_reduction() const {
    return shards_ == 1 ? *across_ : *reduce_;
  }

 private:
  comm::Communicator& world_;
  int shards_;
  std::shared_ptr<comm::Communicator> gather_, reduce_, control_, across_;
  std::map<int, std::shared_ptr<comm::Communicator>> resharded_;
};

}  // namespace tessera
