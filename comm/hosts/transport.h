// Bytes between this rank and ranks of other hosts: what a network has to offer to the communicator
// of several hosts. A new network is an implementation of this.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tessera::comm {

// A peer is gone, or nothing reaches it: what() names it.
class LinkBroken : public Error {
  using Error::Error;
};

// Used by one thread at a time. Messages between two ranks arrive in the order in which they were
// sent, and are received in pieces of the sizes in which they were sent. Nothing blocks but move(),
// and that not for longer than it is told.
class Transport {
 public:
  using Ticket = std::uint64_t;  // of a message to or from a peer: they are done in order

  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // The memory stays untouched until the message is done. Peers are ranks of the communicator.
  virtual Ticket send(int peer, const std::byte* from, std::size_t bytes) = 0;
  virtual Ticket receive(int peer, std::byte* to, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool sent(int peer, Ticket ticket) const = 0;
  [[nodiscard]] virtual bool received(int peer, Ticket ticket) const = 0;
  // Whether no message is under way.
  [[nodiscard]] virtual bool idle() const = 0;
  // Moves what can be moved now; when there is nothing, waits for that, `patience` at most, and
  // gives false. Throws LinkBroken.
  virtual bool move(std::chrono::milliseconds patience) = 0;
  // Peers of messages that are under way.
  [[nodiscard]] virtual std::vector<int> waits_for() const = 0;
};

}  // namespace tessera::comm
