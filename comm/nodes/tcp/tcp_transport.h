// Messages between nodes over their own TCP connections, with poll(2).
#pragma once

#include <deque>
#include <map>
#include <string>

#include "comm/file_descriptor.h"
#include "comm/nodes/transport.h"

struct iovec;

namespace tessera::comm {

class TcpTransport final : public Transport {
 public:
  struct Peer {
    FileDescriptor connection;
    std::string name;  // for errors
  };
  explicit TcpTransport(std::map<int, Peer> peers);
  // When messages are under way, their connections end at once on both sides; else sent data still
  // arrives.
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  Ticket send(int peer, const std::byte* from, std::size_t bytes) override;
  Ticket receive(int peer, std::byte* to, std::size_t bytes) override;
  [[nodiscard]] bool sent(int peer, Ticket ticket) const override;
  [[nodiscard]] bool received(int peer, Ticket ticket) const override;
  [[nodiscard]] bool idle() const override { return under_way_ == 0; }
  bool move(std::chrono::milliseconds patience) override;
  [[nodiscard]] std::vector<int> waits_for() const override;

 private:
  struct Part {
    std::byte* memory;
    std::size_t bytes;
  };
  // One direction of a connection.
  struct Queue {
    std::deque<Part> parts;
    Ticket begun = 0, done = 0;
  };
  struct Link {
    Peer peer;
    Queue out, in;
  };

  [[nodiscard]] Link& link_to(int peer);
  [[nodiscard]] const Link& link_to(int peer) const;
  static std::size_t fill(const Queue& queue, iovec* parts);
  void take(Queue& queue, std::size_t bytes);
  bool write(Link& link);
  bool read(Link& link);
  [[noreturn]] static void broken(const Link& link, const std::string& how);

  std::map<int, Link> links_;
  std::size_t under_way_ = 0;  // messages
};

}  // namespace tessera::comm
