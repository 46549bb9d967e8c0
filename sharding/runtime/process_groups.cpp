#include "sharding/runtime/process_groups.h"

#include <string>

namespace tessera {

ProcessGroups::ProcessGroups(comm::Communicator& world, int shards,
                             const std::vector<int>& reshard_ranks)
    : world_(world),
      shards_(shards),
      gather_(world.split_blocks(shards, "gather")),
      reduce_(gather_->duplicate("reduce")),
      control_(gather_->duplicate("control")),
      across_(world.split_across_blocks(shards, "replicas")) {
  for (const int ranks : reshard_ranks) {
    if (ranks == 0 || resharded_.contains(ranks)) continue;
    resharded_[ranks] = gather_->split_blocks(ranks, "gather from " + std::to_string(ranks));
  }
}

}  // namespace tessera
