// The messages of the rendezvous, one datagram each.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/file_descriptor.h"
#include "comm/world.h"

namespace tessera::comm {

struct Hello {
  static constexpr std::uint64_t magic_number = 0x6d6d6f6361737374;  // "tssacomm" in memory
  static constexpr std::uint32_t protocol_version = 1;

  // These three never change, so that any two versions can tell each other apart.
  std::uint64_t magic = magic_number;
  std::uint32_t protocol = protocol_version;
  char library[28]{};  // the library's version
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t local_size = 0;
};

// A rank's own hello.
Hello hello_of(const World& world);

// The address where the ranks of a world meet: an abstract name, which disappears with its socket.
struct MeetingAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};
MeetingAddress meeting_address(const World& world);

// The other end of a connection.
struct Peer {
  int pid = 0;
  unsigned uid = 0;
};
Peer peer_of(int socket);

// Rank 0's answer: it has handles when `refusal` is empty.
struct Answer {
  std::string refusal;
  int error_code = 0;
  std::vector<FileDescriptor> handles;
};
// Best effort: other code notices a peer that is gone.
void send_refusal(int socket, int error_code, std::string_view reason);
void send_handles(int socket, const std::vector<int>& handles);
// Blocks until the answer arrives or the socket's receive timeout ends; an empty handle list and an
// empty refusal mean that rank 0 closed the connection or was silent for too long.
Answer receive_answer(int socket);

}  // namespace tessera::comm
