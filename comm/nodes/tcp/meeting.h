// How ranks of different nodes open connections to each other: each rank listens at its own port
// and sends its contact over the control plane, which knows the ranks of the job. The contact has
// the address and the secret by which ranks recognise each other (greeting.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/file_descriptor.h"
#include "comm/nodes/tcp/greeting.h"
#include "comm/nodes/tcp/outgoing_call.h"
#include "comm/watch/crowd.h"
#include "comm/world.h"

namespace tessera::comm {

// One rank's meeting; thread-safe.
class Meeting {
 public:
  // `protection` is that of data between machines.
  Meeting(const World& world, Protection protection);

  [[nodiscard]] const Contact& contact() const { return contact_; }

  using Peer = NamedContact;
  struct Connection {
    FileDescriptor socket;
    FrameKeys keys;
  };
  // Collective over this rank and `peers`: a connection to each, in their order. `channel` is a
  // number that no other call of the job has. `look` is called regularly and throws when there is
  // no need to wait any longer. Connections of strangers are rejected and delay no rank.
  std::vector<Connection> connect(std::uint64_t channel, const std::vector<Peer>& peers,
                                  std::chrono::milliseconds timeout,
                                  const std::function<void()>& look);

 private:
  using Clock = std::chrono::steady_clock;
  using Calls = std::vector<std::optional<OutgoingCall>>;
  struct Guest {  // connected, its hello is incomplete
    FileDescriptor socket;
    std::string address;
    Clock::time_point since;
    DataHello hello{};
    std::size_t heard = 0;  // bytes of it
    bool over = false;
  };
  struct Caller {  // has said a genuine hello; its confirmation is incomplete
    FileDescriptor socket;
    Clock::time_point since;
    DataHello hello{};
    DataAnswer answer{};
    Mac confirmation{};
    std::size_t heard = 0;  // bytes of it
    bool over = false;
  };

  void complete(Calls& calls, std::uint64_t channel, const std::vector<Peer>& peers,
                std::vector<Connection>& connections, const std::function<void()>& look);
  void wait_for_some(const Calls& calls);
  std::optional<Connection> take_arrived(std::uint64_t channel, const Peer& peer);
  void receive_guests();
  void accept_guests();
  void hear(Guest& guest);
  void greet(Guest& guest);
  void hear(Caller& caller);

  int rank_;
  Contact contact_;
  FileDescriptor listener_;
  std::mutex mutex_;             // of what follows
  std::vector<Guest> guests_;    // in the order of their arrival
  std::vector<Caller> callers_;  // of other ranks, or copies of their hellos
  ListenerPause pause_;
  std::map<std::pair<std::uint64_t, std::int32_t>, Caller> arrived_;  // channel, rank
};

}  // namespace tessera::comm
