// One TCP connection for data: queues of messages in both directions, whose bytes go as they are or
// in frames with tags (frames.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "comm/file_descriptor.h"
#include "comm/nodes/tcp/frames.h"
#include "comm/nodes/transport.h"

struct iovec;

namespace tessera::comm {

class TcpLink {
 public:
  using Ticket = Transport::Ticket;

  // `name` is the peer's, for errors.
  TcpLink(FileDescriptor connection, std::string name, const FrameKeys& keys);
  // When messages are under way, the connection ends at once on both sides; else sent data still
  // arrives.
  ~TcpLink();
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  Ticket send(const std::byte* from, std::size_t bytes);
  Ticket receive(std::byte* to, std::size_t bytes);
  [[nodiscard]] bool sent(Ticket ticket) const { return out_.done >= ticket; }
  [[nodiscard]] bool received(Ticket ticket) const { return in_.done >= ticket; }
  [[nodiscard]] bool idle() const { return out_.messages.empty() && in_.messages.empty(); }
  // Moves what the kernel can take and has, in each direction at most a few MiB; returns whether it
  // was any. Throws LinkBroken.
  bool move();
  [[nodiscard]] int socket() const { return connection_.get(); }
  // The events that poll() has to wait for.
  [[nodiscard]] short events() const;

 private:
  struct Message {  // the part of it that has not been moved, in whole frames if there are frames
    std::byte* memory;
    std::size_t bytes;
  };
  struct Queue {
    std::deque<Message> messages;
    Ticket begun = 0, done = 0;
  };
  // The frame of a direction that is on its way: data, then the tag.
  struct Frame {
    std::size_t bytes = 0;  // of the data; 0 between frames
    std::size_t moved = 0;  // with the tag
    FrameCipher::Tag tag{};

    [[nodiscard]] bool is_whole() const { return moved == bytes + FrameCipher::tag_bytes; }
  };

  static std::size_t fill(const Queue& queue, iovec* parts);
  static std::size_t fill(Frame& frame, std::byte* data, iovec* parts);
  static void take(Queue& queue, std::size_t bytes);
  // Both return the bytes that were moved; 0 when none can be now.
  std::size_t send_parts(iovec* parts, std::size_t count, int flags);
  std::size_t receive_parts(iovec* parts, std::size_t count);
  bool write();
  bool read();
  bool write_frames();
  bool read_frames();
  void seal_next();
  [[nodiscard]] bool more_follows() const;
  [[noreturn]] void broken(const std::string& how) const;

  FileDescriptor connection_;
  std::string name_;
  Queue out_, in_;
  std::optional<FrameCipher> sealing_, opening_;  // none: bytes go as they are
  Frame out_frame_, in_frame_;
  std::vector<std::byte> sealed_;  // the encrypted frame that is being sent
};

}  // namespace tessera::comm
