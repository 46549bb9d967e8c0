// Messages between hosts by MPI's nonblocking calls, which are looked at and never waited in: a
// wait inside of MPI does not end when a peer has stopped.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <string>

#include "comm/hosts/transport.h"
#include "comm/mpi/library.h"

namespace tessera::comm {

class MpiTransport final : public Transport {
 public:
  struct Peer {
    int rank = 0;      // of MPI
    int tag = 0;       // of all messages to and from it, and of no other transport's
    std::string name;  // for errors
  };
  // A message goes in pieces of this much: MPI counts bytes in an int, and says nothing of a
  // message until all of it has come, while a rank to which bytes come has to show it.
  static constexpr std::size_t default_piece = std::size_t{4} << 20;

  MpiTransport(Mpi& mpi, Mpi::Communicator over, std::map<int, Peer> peers,
               std::size_t piece = default_piece);
  ~MpiTransport() override;

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  Ticket send(int peer, const std::byte* from, std::size_t bytes) override;
  Ticket receive(int peer, std::byte* to, std::size_t bytes) override;
  [[nodiscard]] bool sent(int peer, Ticket ticket) const override;
  [[nodiscard]] bool received(int peer, Ticket ticket) const override;
  [[nodiscard]] bool idle() const override { return under_way_ == 0; }
  bool move(std::chrono::milliseconds patience) override;
  [[nodiscard]] std::vector<int> waits_for() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    std::byte* memory;
    std::size_t bytes;  // that MPI was not told of
  };
  struct Piece {
    Mpi::Request request;
    std::size_t bytes;
    bool is_last;  // of its message
  };
  // One direction of a link.
  struct Queue {
    std::deque<Message> messages;
    std::deque<Piece> pieces;  // under way
    Ticket begun = 0, done = 0;
  };
  struct Link {
    Peer peer;
    Queue out, in;
  };

  [[nodiscard]] Link& link_to(int peer);
  [[nodiscard]] const Link& link_to(int peer) const;
  void begin_message();
  bool step();
  void post(Link& link, bool out);
  bool collect(Link& link, bool out);
  void rest() const;
  [[noreturn]] static void broken(const Link& link, const std::string& how);

  Mpi& mpi_;
  const Mpi::Communicator over_;
  const std::size_t piece_;
  std::map<int, Link> links_;
  std::size_t under_way_ = 0;                  // messages
  Clock::time_point moved_at_ = Clock::now();  // or begun to wait
};

}  // namespace tessera::comm
