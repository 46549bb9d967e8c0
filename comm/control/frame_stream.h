// Frames for a thread that serves many connections: no function here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "comm/control/session.h"
#include "comm/control/wire.h"
#include "comm/file_descriptor.h"

namespace tessera::comm::control {

// Assembles frames from bytes that arrive in pieces. Memory grows with the bytes that have arrived,
// not with the size that a header announces.
class FrameAssembler {
 public:
  explicit FrameAssembler(std::uint64_t most_bytes = max_frame_bytes) : most_bytes_(most_bytes) {}

  void add(std::string_view bytes);
  // The next whole frame. Throws Error(rank_failed) when the bytes are not a frame of this
  // protocol, or the session does not open them.
  std::optional<Frame> next(Session& session);
  std::optional<Frame> next() {
    Session clear;
    return next(clear);
  }
  // A part of a frame has arrived.
  [[nodiscard]] bool in_the_middle() const { return begin_ < bytes_.size() || opened_; }

 private:
  std::uint64_t most_bytes_;
  std::string bytes_;
  std::size_t begin_ = 0;              // of the bytes that next() has not used
  std::optional<FrameHeader> opened_;  // of a sealed frame whose payload has not arrived
};

// One end of a connection.
class FrameStream {
 public:
  FrameStream() = default;
  // Makes the socket non-blocking.
  explicit FrameStream(FileDescriptor socket, Session session = {},
                       std::uint64_t most_bytes = max_frame_bytes);

  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return socket_.get() >= 0; }
  void close() { socket_.reset(); }
  // Returns the socket, set to blocking again.
  FileDescriptor release();

  // Reads the bytes that have arrived; false when there were none. Throws Error(rank_failed) when
  // the connection breaks, also in the middle of a frame; ended() is true when the other end has
  // closed it.
  bool receive();
  [[nodiscard]] bool ended() const { return ended_; }
  // The next whole frame of the received bytes.
  std::optional<Frame> next() { return assembler_.next(session_); }

  // Sends, and keeps the bytes that the socket does not take for flush(). Throws as receive() does.
  void send(FrameHeader header, std::string_view payload);
  // Sends from the kept bytes; true when some were sent.
  bool flush();
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty(); }
  // Bytes that the other end's system has not acknowledged count as well.
  [[nodiscard]] bool has_undelivered() const;

 private:
  FileDescriptor socket_;
  Session session_;
  FrameAssembler assembler_;
  std::deque<std::string> unsent_;
  std::size_t sent_ = 0;  // of unsent_.front()
  bool ended_ = false;
};

}  // namespace tessera::comm::control
