// How ranks of different hosts open connections to each other: each listens at a port of its own,
// and tells the others over the control plane, which knows who belongs to the job, where that is
// and by which secrets they recognise each other.
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
#include "comm/world.h"

namespace tessera::comm {

// Where a rank can be reached.
struct Contact {
  using Secret = std::array<std::uint64_t, 4>;
  std::string machine;  // ranks that say the same one reach each other at 127.0.0.1
  std::string address;
  std::int32_t port = 0;
  Secret callers{};  // what callers show
  Secret answer{};   // what a caller is answered
};
std::string encode(const Contact& contact);
Contact decode_contact(std::string_view text);

// One rank's; thread-safe.
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
  // number that no other call of the job has. `look` is called now and then, and throws when there
  // is no need to wait any longer. Strangers are turned away and not waited for.
  std::vector<FileDescriptor> connect(std::uint64_t channel, const std::vector<Peer>& peers,
                                      std::chrono::milliseconds timeout,
                                      const std::function<void()>& look);

 private:
  using Clock = std::chrono::steady_clock;
  struct Hello {                                                       // what a caller says
    static constexpr std::uint64_t magic_number = 0x31617461646c7374;  // "tsldata1" in memory
    std::uint64_t magic = magic_number;
    std::uint64_t channel = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
    Contact::Secret secret{};
  };
  struct Guest {  // connected, and has not said hello
    FileDescriptor socket;
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
  void hear(Guest& guest);

  int rank_;
  Contact contact_;
  FileDescriptor listener_;
  std::mutex mutex_;  // of what follows
  std::vector<Guest> guests_;
  std::map<std::pair<std::uint64_t, std::int32_t>, FileDescriptor> arrived_;  // channel, rank
};

}  // namespace tessera::comm
