// Messages between nodes over their own TCP connections, with poll(2).
#pragma once

#include <map>
#include <string>

#include "comm/file_descriptor.h"
#include "comm/nodes/tcp/link.h"
#include "comm/nodes/transport.h"

namespace tessera::comm {

class TcpTransport final : public Transport {
 public:
  struct Peer {
    FileDescriptor connection;
    std::string name;  // for errors
    FrameKeys keys{};
  };
  explicit TcpTransport(std::map<int, Peer> peers);

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  Ticket send(int peer, const std::byte* from, std::size_t bytes) override;
  Ticket receive(int peer, std::byte* to, std::size_t bytes) override;
  [[nodiscard]] bool sent(int peer, Ticket ticket) const override;
  [[nodiscard]] bool received(int peer, Ticket ticket) const override;
  [[nodiscard]] bool idle() const override;
  bool move(std::chrono::milliseconds patience) override;
  [[nodiscard]] std::vector<int> waits_for() const override;

 private:
  [[nodiscard]] TcpLink& link_to(int peer);
  [[nodiscard]] const TcpLink& link_to(int peer) const;

  std::map<int, TcpLink> links_;
};

}  // namespace tessera::comm
