// The interface of a network between nodes: how ranks reach each other over it, and the transports
// that it makes for communicators. A new network implements Network and Transport and adds a row in
// connect.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nodes/transport.h"

namespace tessera::comm {

// One rank's network; thread-safe.
class Network {
 public:
  // Called regularly by code that waits for other ranks; throws when the wait must end.
  using Look = std::function<void()>;
  struct Peer {
    int number = 0;  // in the communicator
    int rank = 0;    // of the world
    std::string name;
    std::string contact;  // the result of its contact()
  };

  Network() = default;
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // The backend name of communicators that use this network, such as "shm+tcp".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  // The text that other ranks need to reach this one; the control plane sends it before any other
  // use.
  [[nodiscard]] virtual std::string contact() const = 0;

  // All ranks of the world call start(), then meet(). `contacts` are theirs, by rank. start()
  // throws when this rank or the contacts are unusable, and all ranks learn of it.
  virtual void start(const std::vector<std::string>& contacts) = 0;
  virtual void meet(Look look) = 0;

  // Collective over this rank and the peers. `channel` is a number that no other call of the job
  // has.
  [[nodiscard]] virtual std::unique_ptr<Transport> open(std::uint64_t channel,
                                                        const std::vector<Peer>& peers,
                                                        std::chrono::milliseconds timeout,
                                                        const Look& look) = 0;

  // Called after a failure by the rank that has seen it: afterwards the memory of messages under
  // way may be freed.
  virtual void give_up() noexcept = 0;
  // Collective over the world, when the job ends normally.
  virtual void leave(const Look& look) = 0;
};

}  // namespace tessera::comm
