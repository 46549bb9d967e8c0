// The two ends of TCP connections, for tests of what goes over them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "comm/control/wire.h"
#include "comm/file_descriptor.h"

namespace tessera::testing {

// A connection to a port of this machine.
inline comm::FileDescriptor connect_to_port(int port) {
  comm::FileDescriptor socket(TESSERA_SYSTEM(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  TESSERA_SYSTEM(
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
  return socket;
}

// Two ends of one connection, whose kernel takes about `at_once` bytes to send if that is not 0.
inline std::pair<comm::FileDescriptor, comm::FileDescriptor> connected(int at_once = 0) {
  const comm::FileDescriptor listener(*comm::control::listen_on(0, true));
  comm::control::set_blocking(listener.get(), true);
  comm::FileDescriptor caller = connect_to_port(comm::control::port_of(listener.get()));
  comm::FileDescriptor called(TESSERA_SYSTEM(accept(listener.get(), nullptr, nullptr)));
  for (const int socket : {caller.get(), called.get()}) {
    if (at_once == 0) break;
    TESSERA_SYSTEM(setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &at_once, sizeof(at_once)));
  }
  return {std::move(caller), std::move(called)};
}

inline void say(const comm::FileDescriptor& socket, std::string_view bytes) {
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// The bytes that have come and have not been read; waits for none.
inline std::string heard_from(const comm::FileDescriptor& socket) {
  std::string heard;
  char piece[4096];
  for (;;) {
    const ssize_t bytes = recv(socket.get(), piece, sizeof(piece), MSG_DONTWAIT);
    if (bytes <= 0) return heard;
    heard.append(piece, static_cast<std::size_t>(bytes));
  }
}

template <class T>
std::string_view bytes_of_object(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof(object)};
}

}  // namespace tessera::testing
