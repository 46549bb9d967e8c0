// Each call writes and reads as much as the kernel can take and has.
#include "comm/nodes/tcp/link.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

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

TcpLink::TcpLink(FileDescriptor connection, std::string name, const FrameKeys& keys)
    : connection_(std::move(connection)), name_(std::move(name)) {
  const int on = 1;
  TESSERA_SYSTEM(setsockopt(connection_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
  if (keys.protection == Protection::none) return;
  sealing_.emplace(keys, keys.sending);
  opening_.emplace(keys, keys.receiving);
  if (sealing_->encrypts()) sealed_.resize(FrameCipher::most_bytes);
}

// No TCP_USER_TIMEOUT: it would end the connection to a rank that is alive but late, whose window
// stays closed. But data that no rank waits for any more need not be sent to a node that is gone.
TcpLink::~TcpLink() {
  if (idle()) return;
  const linger at_once{1, 0};
  (void)setsockopt(connection_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

TcpLink::Ticket TcpLink::send(const std::byte* from, std::size_t bytes) {
  out_.messages.push_back({const_cast<std::byte*>(from), bytes});  // it is only read
  return ++out_.begun;
}

TcpLink::Ticket TcpLink::receive(std::byte* to, std::size_t bytes) {
  in_.messages.push_back({to, bytes});
  return ++in_.begun;
}

short TcpLink::events() const {
  return static_cast<short>((out_.messages.empty() ? 0 : POLLOUT) |
                            (in_.messages.empty() ? 0 : POLLIN));
}

bool TcpLink::move() {
  // An empty message is done when its turn comes.
  for (Queue* queue : {&out_, &in_}) take(*queue, 0);
  const bool wrote = sealing_ ? write_frames() : write();
  const bool was_read = opening_ ? read_frames() : read();
  return wrote || was_read;
}

std::size_t TcpLink::fill(const Queue& queue, iovec* parts) {
  const std::size_t count = std::min(queue.messages.size(), parts_at_once);
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = {queue.messages[i].memory, queue.messages[i].bytes};
  }
  return count;
}

// The bytes of a frame that have not been moved yet. Its data lies at `data`.
std::size_t TcpLink::fill(Frame& frame, std::byte* data, iovec* parts) {
  std::size_t count = 0;
  if (frame.moved < frame.bytes) parts[count++] = {data + frame.moved, frame.bytes - frame.moved};
  const std::size_t of_tag = std::max(frame.moved, frame.bytes) - frame.bytes;
  parts[count++] = {frame.tag.data() + of_tag, frame.tag.size() - of_tag};
  return count;
}

void TcpLink::take(Queue& queue, std::size_t bytes) {
  while (!queue.messages.empty() && queue.messages.front().bytes <= bytes) {
    bytes -= queue.messages.front().bytes;
    queue.messages.pop_front();
    ++queue.done;
  }
  if (bytes == 0) return;
  queue.messages.front().memory += bytes;
  queue.messages.front().bytes -= bytes;
}

void TcpLink::broken(const std::string& how) const {
  throw LinkBroken(ErrorCode::rank_failed,
                   fmt::format("the connection to {} broke: {}", name_, how));
}

std::size_t TcpLink::send_parts(iovec* parts, std::size_t count, int flags) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t bytes = sendmsg(connection_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
    if (bytes >= 0) return static_cast<std::size_t>(bytes);
    if (errno == EINTR) continue;
    if (would_wait()) return 0;
    broken(describe_errno("sendmsg", errno));
  }
}

std::size_t TcpLink::receive_parts(iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t bytes = recvmsg(connection_.get(), &message, MSG_DONTWAIT);
    if (bytes > 0) return static_cast<std::size_t>(bytes);
    if (bytes == 0) broken("the other end closed it");
    if (errno == EINTR) continue;
    if (would_wait()) return 0;
    broken(describe_errno("recvmsg", errno));
  }
}

bool TcpLink::write() {
  std::size_t moved = 0;
  while (!out_.messages.empty() && moved < bytes_at_once) {
    std::array<iovec, parts_at_once> parts{};
    const std::size_t bytes = send_parts(parts.data(), fill(out_, parts.data()), 0);
    take(out_, bytes);
    moved += bytes;
    if (bytes == 0) break;
  }
  return moved > 0;
}

bool TcpLink::read() {
  std::size_t moved = 0;
  while (!in_.messages.empty() && moved < bytes_at_once) {
    std::array<iovec, parts_at_once> parts{};
    const std::size_t bytes = receive_parts(parts.data(), fill(in_, parts.data()));
    if (bytes == 0) break;
    take(in_, bytes);
    moved += bytes;
  }
  return moved > 0;
}

// The data is in the cache when the kernel copies it.
void TcpLink::seal_next() {
  const Message& message = out_.messages.front();
  out_frame_ = {.bytes = std::min(message.bytes, FrameCipher::most_bytes)};
  sealing_->seal(message.memory, out_frame_.bytes, sealed_.data(), out_frame_.tag);
}

// The kernel may keep the end of a frame for the packet of the next one.
bool TcpLink::more_follows() const {
  return out_.messages.front().bytes > out_frame_.bytes ||
         (out_.messages.size() > 1 && out_.messages[1].bytes > 0);
}

bool TcpLink::write_frames() {
  std::size_t moved = 0;
  while (!out_.messages.empty() && moved < bytes_at_once) {
    if (out_frame_.bytes == 0) seal_next();
    std::byte* data = sealing_->encrypts() ? sealed_.data() : out_.messages.front().memory;
    std::array<iovec, 2> parts{};
    const std::size_t count = fill(out_frame_, data, parts.data());
    const bool more = more_follows() && moved + FrameCipher::most_bytes < bytes_at_once;
    const std::size_t bytes = send_parts(parts.data(), count, more ? MSG_MORE : 0);
    if (bytes == 0) break;
    moved += bytes;
    out_frame_.moved += bytes;
    if (!out_frame_.is_whole()) continue;
    take(out_, out_frame_.bytes);
    out_frame_ = {};
  }
  return moved > 0;
}

// A message that contains a frame which does not open is never done.
bool TcpLink::read_frames() {
  std::size_t moved = 0;
  while (!in_.messages.empty() && moved < bytes_at_once) {
    const Message& message = in_.messages.front();
    if (in_frame_.bytes == 0) in_frame_.bytes = std::min(message.bytes, FrameCipher::most_bytes);
    if (!in_frame_.is_whole()) {
      std::array<iovec, 2> parts{};
      const std::size_t bytes =
          receive_parts(parts.data(), fill(in_frame_, message.memory, parts.data()));
      if (bytes == 0) break;
      moved += bytes;
      in_frame_.moved += bytes;
      if (!in_frame_.is_whole()) continue;
    }
    if (!opening_->open(message.memory, in_frame_.bytes, in_frame_.tag)) {
      broken(
          "data that arrived is not what that rank sent next: it was changed, left out or repeated "
          "on its way, or another program has joined in; look for it between the two hosts");
    }
    take(in_, in_frame_.bytes);
    in_frame_ = {};
  }
  return moved > 0;
}

}  // namespace tessera::comm
