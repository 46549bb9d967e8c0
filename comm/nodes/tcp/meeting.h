// How ranks of different nodes open connections to each other: each rank listens at its own port
// and sends its contact over the control plane, which knows the ranks of the job. The contact has
// the address and the secrets by which ranks recognise each other.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/file_descriptor.h"
#include "comm/watch/crowd.h"
#include "comm/world.h"

namespace tessera::comm {

// How a rank can be reached.
struct Contact {
  using Secret = std::array<std::uint64_t, 4>;
  std::string machine;  // ranks with the same value reach each other at 127.0.0.1
  std::string address;
  std::int32_t port = 0;
  Secret callers{};  // sent by callers
  Secret answer{};   // sent back to a caller
};
std::string encode(const Contact& contact);
Contact decode_contact(std::string_view text);

// One rank's meeting; thread-safe.
class Meeting {
 public:
  explicit Meeting(const World& world);

  [[nodiscard]] const Contact& contact() const { return contact_; }

  struct Peer {
    int rank = 0;  // of the world
    Contact contact;
    std::string name;
  };
  // Collective over this rank and `peers`: a connection to each, in their order. `channel` is a
  // number that no other call of the job has. `look` is called regularly and throws when there is
  // no need to wait any longer. Connections without the secret are rejected and delay no rank.
  std::vector<FileDescriptor> connect(std::uint64_t channel, const std::vector<Peer>& peers,
                                      std::chrono::milliseconds timeout,
                                      const std::function<void()>& look);

 private:
  using Clock = std::chrono::steady_clock;
  struct Hello {                                                       // a caller's message
    static constexpr std::uint64_t magic_number = 0x31617461646c7374;  // "tsldata1" in memory
    std::uint64_t magic = magic_number;
    std::uint64_t channel = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
    Contact::Secret secret{};
  };
  struct Guest {  // connected, its hello is incomplete
    FileDescriptor socket;
    std::string address;
    Clock::time_point since;
    Hello hello{};
    std::size_t heard = 0;  // bytes of it
    bool over = false;
  };

  [[nodiscard]] FileDescriptor call(std::uint64_t channel, const Peer& peer,
                                    Clock::time_point deadline,
                                    const std::function<void()>& look) const;
  void await_answer(int socket, const Peer& peer, Clock::time_point deadline,
                    const std::function<void()>& look) const;
  std::optional<FileDescriptor> take_arrived(std::uint64_t channel, int rank);
  void receive_guests();
  void accept_guests();
  void hear(Guest& guest);

  int rank_;
  Contact contact_;
  FileDescriptor listener_;
  std::mutex mutex_;           // of what follows
  std::vector<Guest> guests_;  // in the order of their arrival
  ListenerPause pause_;
  std::map<std::pair<std::uint64_t, std::int32_t>, FileDescriptor> arrived_;  // channel, rank
};

}  // namespace tessera::comm
