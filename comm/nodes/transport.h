// Bytes between this rank and ranks of other nodes: the interface that the multi-node communicator
// needs of a network. A new network implements it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tessera::comm {

// A peer is gone or cannot be reached: what() names it.
class LinkBroken : public Error {
  using Error::Error;
};

// Used by one thread at a time. Messages between two ranks arrive in the order in which they were
// sent, and the receiver uses the same piece sizes as the sender. Only move() blocks, for at most
// its timeout.
class Transport {
 public:
  using Ticket = std::uint64_t;  // of a message to or from a peer: they are done in order

  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // The memory must not change until the message is done. Peers are ranks of the communicator.
  virtual Ticket send(int peer, const std::byte* from, std::size_t bytes) = 0;
  virtual Ticket receive(int peer, std::byte* to, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool sent(int peer, Ticket ticket) const = 0;
  [[nodiscard]] virtual bool received(int peer, Ticket ticket) const = 0;
  // True when no message is under way.
  [[nodiscard]] virtual bool idle() const = 0;
  // Moves the bytes that can be moved now; when there are none, waits at most `patience` for some,
  // and returns false. Throws LinkBroken.
  virtual bool move(std::chrono::milliseconds patience) = 0;
  // Peers of messages that are under way.
  [[nodiscard]] virtual std::vector<int> waits_for() const = 0;
};

}  // namespace tessera::comm
