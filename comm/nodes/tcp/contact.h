// How a rank can be reached for data, and what protects the data between two ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/nodes/tcp/frames.h"

namespace tessera::comm {

// The control plane carries it to all ranks, sealed in a job with a key.
struct Contact {
  using Secret = std::array<std::uint8_t, 32>;

  std::string machine;  // ranks with the same value reach each other at 127.0.0.1
  std::string address;
  std::int32_t port = 0;
  Secret secret{};  // of this run; ranks recognise each other by it, and never send it to a port
  Protection protection = Protection::none;  // of data between machines
  bool aes = false;                          // has_aes()
};
std::string encode(const Contact& contact);
Contact decode_contact(std::string_view text);

struct NamedContact {
  int rank = 0;  // of the world
  Contact contact;
  std::string name;
};

// Only root could read or change what goes over a machine's own loopback, so that needs no tags.
// Encryption has no exception. Both ends get the same result.
Protection protection_between(const Contact& one, const Contact& other);

}  // namespace tessera::comm
