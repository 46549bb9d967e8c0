// What carries data between hosts: how ranks reach each other over it, and the transports that it
// makes for communicators. A new network is an implementation of this and of Transport, and a row
// in connect.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/hosts/transport.h"

namespace tessera::comm {

// One rank's; thread-safe.
class Network {
 public:
  // Called now and then by what waits for other ranks; throws when there is no need to wait.
  using Look = std::function<void()>;
  struct Peer {
    int number = 0;  // in the communicator
    int rank = 0;    // of the world
    std::string name;
    std::string contact;  // what its contact() says
  };

  Network() = default;
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Of communicators that use it: "shm+tcp".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  // What other ranks have to know of this one, told over the control plane before anything else.
  [[nodiscard]] virtual std::string contact() const = 0;

  // In this order, by all ranks of the world. `contacts` are theirs, by rank; what is wrong with
  // this rank or with them is thrown by start(), and told to all.
  virtual void start(const std::vector<std::string>& contacts) = 0;
  virtual void meet(Look look) = 0;

  // Collective over this rank and the peers. `channel` is a number that no other call of the job
  // has.
  [[nodiscard]] virtual std::unique_ptr<Transport> open(std::uint64_t channel,
                                                        const std::vector<Peer>& peers,
                                                        std::chrono::milliseconds timeout,
                                                        const Look& look) = 0;

  // After a failure, by the rank that has seen it: memory of messages under way may go.
  virtual void give_up() noexcept = 0;
  // Collective over the world, when the job ends well.
  virtual void leave(const Look& look) = 0;
};

}  // namespace tessera::comm
