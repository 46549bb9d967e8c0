// Queues of messages; each call writes and reads as much as the kernel can take and has.
#include "comm/nodes/tcp/tcp_transport.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"

namespace tessera::comm {
namespace {

constexpr std::size_t parts_at_once = 16;
// The most that one direction of a link moves before the others have their turn.
constexpr std::size_t bytes_at_once = std::size_t{4} << 20;

bool would_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

TcpTransport::TcpTransport(std::map<int, Peer> peers) {
  for (auto& entry : peers) {
    const int on = 1;
    TESSERA_SYSTEM(
        setsockopt(entry.second.connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    links_[entry.first].peer = std::move(entry.second);
  }
}

// No TCP_USER_TIMEOUT: it would end the connection to a rank that is alive but late, whose window
// stays closed. But data that no rank waits for any more need not be sent to a node that is gone.
TcpTransport::~TcpTransport() {
  for (const auto& entry : links_) {
    const Link& link = entry.second;
    if (link.out.parts.empty() && link.in.parts.empty()) continue;
    const linger at_once{1, 0};
    (void)setsockopt(link.peer.connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
}

TcpTransport::Link& TcpTransport::link_to(int peer) {
  const auto found = links_.find(peer);
  TESSERA_REQUIRE(found != links_.end(), "no connection to rank {}", peer);
  return found->second;
}

const TcpTransport::Link& TcpTransport::link_to(int peer) const {
  const auto found = links_.find(peer);
  TESSERA_REQUIRE(found != links_.end(), "no connection to rank {}", peer);
  return found->second;
}

Transport::Ticket TcpTransport::send(int peer, const std::byte* from, std::size_t bytes) {
  Queue& queue = link_to(peer).out;
  queue.parts.push_back({const_cast<std::byte*>(from), bytes});  // it is only read
  ++under_way_;
  return ++queue.begun;
}

Transport::Ticket TcpTransport::receive(int peer, std::byte* to, std::size_t bytes) {
  Queue& queue = link_to(peer).in;
  queue.parts.push_back({to, bytes});
  ++under_way_;
  return ++queue.begun;
}

bool TcpTransport::sent(int peer, Ticket ticket) const {
  return link_to(peer).out.done >= ticket;
}

bool TcpTransport::received(int peer, Ticket ticket) const {
  return link_to(peer).in.done >= ticket;
}

std::size_t TcpTransport::fill(const Queue& queue, iovec* parts) {
  const std::size_t count = std::min(queue.parts.size(), parts_at_once);
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = {queue.parts[i].memory, queue.parts[i].bytes};
  }
  return count;
}

void TcpTransport::take(Queue& queue, std::size_t bytes) {
  while (!queue.parts.empty() && queue.parts.front().bytes <= bytes) {
    bytes -= queue.parts.front().bytes;
    queue.parts.pop_front();
    ++queue.done;
    --under_way_;
  }
  if (bytes == 0) return;
  queue.parts.front().memory += bytes;
  queue.parts.front().bytes -= bytes;
}

void TcpTransport::broken(const Link& link, const std::string& how) {
  throw LinkBroken(ErrorCode::rank_failed,
                   fmt::format("the connection to {} broke: {}", link.peer.name, how));
}

bool TcpTransport::write(Link& link) {
  std::size_t moved = 0;
  while (!link.out.parts.empty() && moved < bytes_at_once) {
    std::array<iovec, parts_at_once> parts{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = fill(link.out, parts.data());
    const ssize_t bytes =
        sendmsg(link.peer.connection.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && would_wait()) break;
    if (bytes < 0) broken(link, describe_errno("sendmsg", errno));
    take(link.out, static_cast<std::size_t>(bytes));
    moved += static_cast<std::size_t>(bytes);
    if (bytes == 0) break;
  }
  return moved > 0;
}

bool TcpTransport::read(Link& link) {
  std::size_t moved = 0;
  while (!link.in.parts.empty() && moved < bytes_at_once) {
    std::array<iovec, parts_at_once> parts{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = fill(link.in, parts.data());
    const ssize_t bytes = recvmsg(link.peer.connection.get(), &message, MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && would_wait()) break;
    if (bytes < 0) broken(link, describe_errno("recvmsg", errno));
    if (bytes == 0) broken(link, "the other end closed it");
    take(link.in, static_cast<std::size_t>(bytes));
    moved += static_cast<std::size_t>(bytes);
  }
  return moved > 0;
}

bool TcpTransport::move(std::chrono::milliseconds patience) {
  bool moved = false;
  for (auto& entry : links_) {
    Link& link = entry.second;
    // An empty message is done when its turn comes.
    for (Queue* queue : {&link.out, &link.in}) take(*queue, 0);
    moved |= write(link);
    moved |= read(link);
  }
  if (moved || under_way_ == 0 || patience.count() == 0) return moved;
  std::vector<pollfd> wanted;
  for (const auto& entry : links_) {
    const Link& link = entry.second;
    const auto events = static_cast<short>((link.out.parts.empty() ? 0 : POLLOUT) |
                                           (link.in.parts.empty() ? 0 : POLLIN));
    if (events != 0) wanted.push_back({link.peer.connection.get(), events, 0});
  }
  const int ready = ::poll(wanted.data(), wanted.size(), static_cast<int>(patience.count()));
  TESSERA_CHECK(ready >= 0 || errno == EINTR, ErrorCode::runtime, "{}",
                describe_errno("poll", errno));
  return false;
}

std::vector<int> TcpTransport::waits_for() const {
  std::vector<int> peers;
  for (const auto& entry : links_) {
    const Link& link = entry.second;
    if (!link.out.parts.empty() || !link.in.parts.empty()) peers.push_back(entry.first);
  }
  return peers;
}

}  // namespace tessera::comm
