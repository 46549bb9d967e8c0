// Data between nodes over TCP connections that ranks open to each other (meeting.h).
#pragma once

#include "comm/nodes/network.h"
#include "comm/nodes/tcp/meeting.h"

namespace tessera::comm {

class TcpNetwork final : public Network {
 public:
  explicit TcpNetwork(const World& world) : meeting_(world) {}

  [[nodiscard]] std::string_view backend() const override { return "shm+tcp"; }
  [[nodiscard]] std::string contact() const override { return encode(meeting_.contact()); }
  void start(const std::vector<std::string>& /*contacts*/) override {}
  void meet(Look /*look*/) override {}
  [[nodiscard]] std::unique_ptr<Transport> open(std::uint64_t channel,
                                                const std::vector<Peer>& peers,
                                                std::chrono::milliseconds timeout,
                                                const Look& look) override;
  void give_up() noexcept override {}  // only this process moves its bytes
  void leave(const Look& /*look*/) override {}

 private:
  Meeting meeting_;
};

}  // namespace tessera::comm
