// Queues of messages; MPI gets a few pieces at a time.
#include "comm/nodes/mpi/mpi_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace tessera::comm {
namespace {

// Pieces at once in one direction of a link: enough that the next is under way when one is done.
constexpr std::size_t mpi_pieces_at_once = 8;

// MPI has no wait with a time limit, so a waiting thread looks again and again: without a pause at
// first, then after pauses of an eighth of its waiting time. So a wait becomes longer by at most
// that.
constexpr std::chrono::microseconds eager_time{50};
constexpr std::chrono::microseconds longest_rest{500};

}  // namespace

MpiTransport::MpiTransport(Mpi& mpi, Mpi::Communicator over, std::map<int, Peer> peers,
                           std::size_t piece)
    : mpi_(mpi), over_(over), piece_(piece) {
  for (auto& entry : peers) links_[entry.first].peer = std::move(entry.second);
}

// Messages still under way belong to a collective that failed, and their memory may be freed.
MpiTransport::~MpiTransport() {
  const bool under_way = std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    return !entry.second.out.pieces.empty() || !entry.second.in.pieces.empty();
  });
  if (under_way) mpi_.give_up();
}

MpiTransport::Link& MpiTransport::link_to(int peer) {
  const auto found = links_.find(peer);
  TESSERA_REQUIRE(found != links_.end(), "no link to rank {}", peer);
  return found->second;
}

const MpiTransport::Link& MpiTransport::link_to(int peer) const {
  const auto found = links_.find(peer);
  TESSERA_REQUIRE(found != links_.end(), "no link to rank {}", peer);
  return found->second;
}

void MpiTransport::begin_message() {
  if (under_way_++ == 0) moved_at_ = Clock::now();
}

Transport::Ticket MpiTransport::send(int peer, const std::byte* from, std::size_t bytes) {
  Queue& queue = link_to(peer).out;
  queue.messages.push_back({const_cast<std::byte*>(from), bytes});  // it is only read
  begin_message();
  return ++queue.begun;
}

Transport::Ticket MpiTransport::receive(int peer, std::byte* to, std::size_t bytes) {
  Queue& queue = link_to(peer).in;
  queue.messages.push_back({to, bytes});
  begin_message();
  return ++queue.begun;
}

bool MpiTransport::sent(int peer, Ticket ticket) const {
  return link_to(peer).out.done >= ticket;
}

bool MpiTransport::received(int peer, Ticket ticket) const {
  return link_to(peer).in.done >= ticket;
}

void MpiTransport::broken(const Link& link, const std::string& how) {
  throw LinkBroken(ErrorCode::rank_failed,
                   fmt::format("messages to and from {} broke: {}", link.peer.name, how));
}

// Both ends cut messages in the same way. An empty message is done when its turn comes, and nothing
// is sent for it.
void MpiTransport::post(Link& link, bool out) {
  Queue& queue = out ? link.out : link.in;
  while (!queue.messages.empty() && queue.pieces.size() < mpi_pieces_at_once) {
    Message& message = queue.messages.front();
    const std::size_t bytes = std::min(message.bytes, piece_);
    Piece piece{{}, bytes, bytes == message.bytes};
    if (bytes > 0) {
      const auto count = static_cast<int>(bytes);
      piece.request =
          out ? mpi_.send(message.memory, count, link.peer.rank, link.peer.tag, over_)
              : mpi_.receive(message.memory, count, link.peer.rank, link.peer.tag, over_);
    }
    queue.pieces.push_back(piece);
    message.memory += bytes;
    message.bytes -= bytes;
    if (piece.is_last) queue.messages.pop_front();
  }
}

// Completes pieces in their order, whatever the order in which MPI ends them.
bool MpiTransport::collect(Link& link, bool out) {
  Queue& queue = out ? link.out : link.in;
  bool moved = false;
  while (!queue.pieces.empty()) {
    Piece& first = queue.pieces.front();
    std::size_t came = first.bytes;
    if (first.bytes > 0 && !mpi_.test(first.request, out ? nullptr : &came)) break;
    const Piece piece = first;
    queue.pieces.pop_front();  // even a wrong one: MPI is done with it
    if (came != piece.bytes) {
      broken(link, fmt::format("{} bytes came where {} were expected", came, piece.bytes));
    }
    if (piece.is_last) {
      ++queue.done;
      --under_way_;
    }
    moved = true;
  }
  return moved;
}

bool MpiTransport::step() {
  bool moved = false;
  for (auto& entry : links_) {
    Link& link = entry.second;
    try {
      for (const bool out : {false, true}) {
        post(link, out);
        moved |= collect(link, out);
        post(link, out);
      }
    } catch (const LinkBroken&) {
      throw;
    } catch (const Error& error) {
      broken(link, error.what());
    }
  }
  if (moved) moved_at_ = Clock::now();
  return moved;
}

void MpiTransport::rest() const {
  const auto waited = Clock::now() - moved_at_;
  if (waited < eager_time) return std::this_thread::yield();
  std::this_thread::sleep_for(std::min<Clock::duration>(waited / 8, longest_rest));
}

bool MpiTransport::move(std::chrono::milliseconds patience) {
  if (step()) return true;
  const auto deadline = Clock::now() + patience;
  while (under_way_ > 0 && Clock::now() < deadline) {
    rest();
    if (step()) return true;
  }
  return false;
}

std::vector<int> MpiTransport::waits_for() const {
  std::vector<int> peers;
  for (const auto& entry : links_) {
    for (const Queue* queue : {&entry.second.out, &entry.second.in}) {
      if (queue->done == queue->begun) continue;
      peers.push_back(entry.first);
      break;
    }
  }
  return peers;
}

}  // namespace tessera::comm
