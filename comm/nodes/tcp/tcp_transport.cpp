// A link for each peer, and the wait for any of them.
#include "comm/nodes/tcp/tcp_transport.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace tessera::comm {

TcpTransport::TcpTransport(std::map<int, Peer> peers) {
  for (auto& entry : peers) {
    Peer& peer = entry.second;
    links_.try_emplace(entry.first, std::move(peer.connection), std::move(peer.name), peer.keys);
  }
}

TcpLink& TcpTransport::link_to(int peer) {
  const auto found = links_.find(peer);
  TESSERA_REQUIRE(found != links_.end(), "no connection to rank {}", peer);
  return found->second;
}

const TcpLink& TcpTransport::link_to(int peer) const {
  const auto found = links_.find(peer);
  TESSERA_REQUIRE(found != links_.end(), "no connection to rank {}", peer);
  return found->second;
}

Transport::Ticket TcpTransport::send(int peer, const std::byte* from, std::size_t bytes) {
  return link_to(peer).send(from, bytes);
}

Transport::Ticket TcpTransport::receive(int peer, std::byte* to, std::size_t bytes) {
  return link_to(peer).receive(to, bytes);
}

bool TcpTransport::sent(int peer, Ticket ticket) const {
  return link_to(peer).sent(ticket);
}

bool TcpTransport::received(int peer, Ticket ticket) const {
  return link_to(peer).received(ticket);
}

bool TcpTransport::idle() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return entry.second.idle(); });
}

bool TcpTransport::move(std::chrono::milliseconds patience) {
  bool moved = false;
  for (auto& entry : links_) moved |= entry.second.move();
  if (moved || patience.count() == 0) return moved;
  std::vector<pollfd> wanted;
  for (const auto& entry : links_) {
    const short events = entry.second.events();
    if (events != 0) wanted.push_back({entry.second.socket(), events, 0});
  }
  if (wanted.empty()) return false;
  const int ready = ::poll(wanted.data(), wanted.size(), static_cast<int>(patience.count()));
  TESSERA_CHECK(ready >= 0 || errno == EINTR, ErrorCode::runtime, "{}",
                describe_errno("poll", errno));
  return false;
}

std::vector<int> TcpTransport::waits_for() const {
  std::vector<int> peers;
  for (const auto& entry : links_) {
    if (!entry.second.idle()) peers.push_back(entry.first);
  }
  return peers;
}

}  // namespace tessera::comm
