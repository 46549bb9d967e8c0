// Frames for a thread that serves many connections: nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "comm/control/wire.h"
#include "comm/file_descriptor.h"

namespace tessera::comm::control {

// Puts frames together from what arrives in pieces. Memory is taken for what has come, not for what
// a header promises.
class FrameAssembler {
 public:
  explicit FrameAssembler(std::uint64_t most_bytes = max_frame_bytes) : most_bytes_(most_bytes) {}

  void add(std::string_view bytes);
  // The next whole frame. Throws Error(rank_failed) for what is none of ours.
  std::optional<Frame> next();
  // Part of a frame is there.
  [[nodiscard]] bool in_the_middle() const { return begin_ < bytes_.size(); }

 private:
  std::uint64_t most_bytes_;
  std::string bytes_;
  std::size_t begin_ = 0;  // of what next() has not given
};

// One end of a connection.
class FrameStream {
 public:
  FrameStream() = default;
  // Makes the socket non-blocking.
  explicit FrameStream(FileDescriptor socket, std::uint64_t most_bytes = max_frame_bytes);

  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return socket_.get() >= 0; }
  void close() { socket_.reset(); }
  // The socket, blocking again.
  FileDescriptor release();

  // Takes what has arrived; false when nothing has. Throws Error(rank_failed) when the connection
  // breaks, in the middle of a frame too; ended() is true when the other end has closed it.
  bool receive();
  [[nodiscard]] bool ended() const { return ended_; }
  // The next whole frame of what was received.
  std::optional<Frame> next() { return assembler_.next(); }

  // Sends, and keeps what the socket does not take for flush(). Throws as receive().
  void send(FrameHeader header, std::string_view payload);
  // Sends of what was kept; true when something went.
  bool flush();
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty(); }
  // What the other end's host has not acknowledged counts as well.
  [[nodiscard]] bool has_undelivered() const;

 private:
  FileDescriptor socket_;
  FrameAssembler assembler_;
  std::deque<std::string> unsent_;
  std::size_t sent_ = 0;  // of unsent_.front()
  bool ended_ = false;
};

}  // namespace tessera::comm::control
