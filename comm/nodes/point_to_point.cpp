// Memory from rank to rank: inside a node through its memory, else over a line between the two.
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "comm/nodes/communicator.h"

namespace tessera::comm {

Transport& NodesCommunicator::line_to(int peer, const Call& call) {
  std::unique_ptr<Transport>& line = lines_[peer];
  if (!line) {
    // The peer may come later.
    const RemoteWait wait(job_->control().watch());
    job_->control().watch().set_call(describe(call));
    // The communicator's number is random, so no other channel has the next number.
    line = job_->open(channel_ + 1, {peer}, world_ranks_);
  }
  return *line;
}

void NodesCommunicator::do_send(const void* memory, std::size_t bytes, int to, Tag tag) {
  const Call call = call_of_message(bytes, to, tag);
  if (topology_.node_of(to) == topology_.own_node()) {
    return local_->send(memory, bytes, topology_.place_of(to), tag);
  }
  job_->control().check(call);
  run(call, [&] {
    Transport& line = line_to(to, call);
    const Header header = header_of(call, 0);
    line.send(to, reinterpret_cast<const std::byte*>(&header), sizeof(header));
    if (bytes > 0) {
      job_->count_sent(bytes);
      line.send(to, static_cast<const std::byte*>(memory), bytes);
    }
    wait_for(line, call, [&](bool&) { return line.idle(); });
  });
}

void NodesCommunicator::do_receive(void* memory, std::size_t bytes, int from, Tag tag) {
  const Call call = call_of_message(bytes, rank(), tag);
  if (topology_.node_of(from) == topology_.own_node()) {
    return local_->receive(memory, bytes, topology_.place_of(from), tag);
  }
  job_->control().check(call);
  run(call, [&] {
    Transport& line = line_to(from, call);
    Header header;
    line.receive(from, reinterpret_cast<std::byte*>(&header), sizeof(header));
    wait_for(line, call, [&](bool&) { return line.idle(); });
    TESSERA_CHECK(header.call == header_of(call, 0).call, ErrorCode::rank_failed,
                  "rank {} in {} on '{}': {} sent something else", job_->control().rank(),
                  describe(call), group_.name(),
                  job_->member(world_ranks_[static_cast<std::size_t>(from)]).name);
    if (bytes > 0) line.receive(from, static_cast<std::byte*>(memory), bytes);
    wait_for(line, call, [&](bool&) { return line.idle(); });
  });
}

// Pieces inside the node are read in place. In round n, the ranks a and b with a + b = n (modulo
// the number of ranks) swap theirs: each pair meets once, and no rank is in two pairs of a round.
void NodesCommunicator::do_all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::all_to_all);
  Call call = shared.call(Op::all_to_all, tag);
  call.bytes = bytes;
  shared.publish(Op::all_to_all);
  const std::byte* mine = shared.data();
  const auto target = [&](int from) {
    return static_cast<std::byte*>(out) + static_cast<std::size_t>(from) * bytes;
  };
  const auto piece = static_cast<std::size_t>(rank()) * bytes;
  collective(call, [&] {
    meet(call);
    for (const int from : topology_.ranks_of(topology_.own_node())) {
      if (bytes > 0)
        std::memcpy(target(from), shared.region(topology_.place_of(from)) + piece, bytes);
    }
    for (int round = 0; round < size(); ++round) {
      const int peer = (round - rank() + size()) % size();
      if (topology_.node_of(peer) == topology_.own_node()) continue;
      const std::byte* its = mine + static_cast<std::size_t>(peer) * bytes;
      if (rank() < peer) do_send(its, bytes, peer, tag);
      do_receive(target(peer), bytes, peer, tag);
      if (rank() > peer) do_send(its, bytes, peer, tag);
    }
  });
  shared.release();
}

// Sends to the first rank of every other node; inside the nodes these ranks and the root pass it
// on.
void NodesCommunicator::do_broadcast(void* memory, std::size_t bytes, int root, Tag tag) {
  Call call(Op::broadcast, tag);
  call.root = root;
  call.bytes = bytes;
  const int here = topology_.own_node();
  const int root_node = topology_.node_of(root);
  const int first = here == root_node ? root : topology_.ranks_of(here).front();
  collective(call, [&] {
    for (int node = 0; node < topology_.nodes() && rank() == root; ++node) {
      if (node != root_node) send(memory, bytes, topology_.ranks_of(node).front(), tag);
    }
    if (here != root_node && rank() == first) receive(memory, bytes, root, tag);
    local_->broadcast(memory, bytes, topology_.place_of(first), tag);
  });
}

}  // namespace tessera::comm
