// Messages between nodes through MPI's nonblocking calls. The transport tests them and never waits
// inside of MPI: such a wait does not end when a peer has stopped.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <string>

#include "comm/mpi/library.h"
#include "comm/nodes/transport.h"

namespace tessera::comm {

class MpiTransport final : public Transport {
 public:
  struct Peer {
    int rank = 0;      // of MPI
    int tag = 0;       // of all messages to and from it, and of no other transport's
    std::string name;  // for errors
  };
  // The size of the pieces of a message. MPI counts bytes in an int, and it reports a message only
  // when all of it has arrived, while a rank that receives bytes must show progress.
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
    std::size_t bytes;  // not yet passed to MPI
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
  Clock::time_point moved_at_ = Clock::now();  // or the begin of waiting
};

}  // namespace tessera::comm
