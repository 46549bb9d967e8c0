// Data between nodes over TCP connections that ranks open to each other (meeting.h).
#pragma once

#include "comm/nodes/network.h"
#include "comm/nodes/tcp/meeting.h"

namespace tessera::comm {

// The environment variable that encrypts data between nodes (value 1).
inline constexpr const char* encrypt_variable = "TESSERA_ENCRYPT";

class TcpNetwork final : public Network {
 public:
  // `protection` is that of data between machines; all ranks must have the same.
  TcpNetwork(const World& world, Protection protection) : meeting_(world, protection) {}

  [[nodiscard]] std::string_view backend() const override { return "shm+tcp"; }
  [[nodiscard]] std::string contact() const override { return encode(meeting_.contact()); }
  void start(const std::vector<std::string>& contacts) override;
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
