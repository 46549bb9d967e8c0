// Sending and assembling frames in pieces.
#include "comm/control/frame_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tessera::comm::control {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 16;
// The most that one connection may send before the others have their turn.
constexpr std::size_t most_bytes_a_turn = std::size_t{1} << 20;

[[noreturn]] void broke(const char* call, int error) {
  fail(ErrorCode::rank_failed, "a control connection broke: {}", describe_errno(call, error));
}

}  // namespace

void FrameAssembler::add(std::string_view bytes) {
  if (begin_ > 0 && begin_ >= bytes_.size() / 2) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  bytes_ += bytes;
}

std::optional<Frame> FrameAssembler::next(Session& session) {
  const bool opens = session.seals();
  const std::size_t head = opens ? Session::header_bytes : sizeof(FrameHeader);
  std::string_view there = std::string_view(bytes_).substr(begin_);
  Frame frame;
  if (opened_) {
    frame.header = *opened_;
  } else {
    // The first bytes are enough to recognise another program.
    const std::size_t begun = std::min(there.size(), sizeof(frame.header.magic));
    TESSERA_CHECK(opens || std::memcmp(there.data(), &frame.header.magic, begun) == 0,
                  ErrorCode::rank_failed,
                  "a control connection carries something else: another program is at its end");
    if (there.size() < head) return std::nullopt;
    if (opens) {
      frame.header = session.open_header(there.substr(0, head));
    } else {
      std::memcpy(&frame.header, there.data(), sizeof(FrameHeader));
    }
    TESSERA_CHECK(frame.header.bytes <= most_bytes_, ErrorCode::rank_failed,
                  "a control connection announces a message of {} bytes: another program is at its "
                  "end",
                  frame.header.bytes);
    there.remove_prefix(head);
    begin_ += head;
    opened_ = frame.header;
  }
  const bool has_tag = opens && frame.header.bytes > 0;
  const std::size_t body = frame.header.bytes + (has_tag ? Session::tag_bytes : 0);
  if (there.size() < body) return std::nullopt;
  frame.payload = has_tag ? session.open_payload(there.substr(0, body)) : there.substr(0, body);
  begin_ += body;
  opened_.reset();
  return frame;
}

FrameStream::FrameStream(FileDescriptor socket, Session session, std::uint64_t most_bytes)
    : socket_(std::move(socket)), session_(std::move(session)), assembler_(most_bytes) {
  set_blocking(socket_.get(), false);
}

FileDescriptor FrameStream::release() {
  set_blocking(socket_.get(), true);
  return std::move(socket_);
}

bool FrameStream::receive() {
  std::array<char, piece_bytes> piece;
  std::size_t taken = 0;
  while (taken < most_bytes_a_turn) {
    const ssize_t count = recv(socket_.get(), piece.data(), piece.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0) broke("recv", errno);
    if (count == 0) {
      ended_ = true;
      break;
    }
    assembler_.add({piece.data(), static_cast<std::size_t>(count)});
    taken += static_cast<std::size_t>(count);
    if (static_cast<std::size_t>(count) < piece.size()) break;
  }
  return taken > 0;
}

void FrameStream::send(FrameHeader header, std::string_view payload) {
  header.bytes = payload.size();
  if (session_.seals()) {
    unsent_.push_back(session_.seal(header, payload));
  } else {
    unsent_.emplace_back(reinterpret_cast<const char*>(&header), sizeof(header)) += payload;
  }
  (void)flush();
}

bool FrameStream::has_undelivered() const {
  int queued = 0;
  return open() && (has_unsent() || (ioctl(socket_.get(), SIOCOUTQ, &queued) == 0 && queued > 0));
}

bool FrameStream::flush() {
  bool went = false;
  while (!unsent_.empty()) {
    const std::string& first = unsent_.front();
    const ssize_t count =
        ::send(socket_.get(), first.data() + sent_, first.size() - sent_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0) broke("send", errno);
    went = true;
    sent_ += static_cast<std::size_t>(count);
    if (sent_ < first.size()) continue;
    unsent_.pop_front();
    sent_ = 0;
  }
  return went;
}

}  // namespace tessera::comm::control
