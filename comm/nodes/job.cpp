// Transports of a communicator to its peers, and the end of the job.
#include "comm/nodes/job.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "base/text/print.h"

namespace tessera::comm {

NodesJob::~NodesJob() {
  if (std::uncaught_exceptions() > 0 || control().failed()) return;
  Call call(Op::barrier, {.phase = Phase::setup});
  call.set_name("the end of the job");
  try {
    const RemoteWait wait(control().watch());
    control().watch().set_call(describe(call));
    network_->leave([&] { control().check(call); });
  } catch (const std::exception& error) {
    print_err("tessera: rank {} at the end of the job: {}\n", control().rank(), error.what());
  }
}

std::unique_ptr<Transport> NodesJob::open(std::uint64_t channel, const std::vector<int>& peers,
                                          const std::vector<int>& world_ranks) const {
  std::vector<Network::Peer> called;
  for (const int peer : peers) {
    const int rank = world_ranks[static_cast<std::size_t>(peer)];
    called.push_back({peer, rank, member(rank).name, member(rank).contact});
  }
  const Call call(Op::split, {.phase = Phase::setup});
  return network_->open(channel, called, timeout_, [&] { control().check(call); });
}

}  // namespace tessera::comm
