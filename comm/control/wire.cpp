// Sockets and frames.
#include "comm/control/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "comm/control/session.h"

namespace tessera::comm::control {
namespace {

void set_option(int socket, int level, int option, int value) {
  TESSERA_SYSTEM(setsockopt(socket, level, option, &value, sizeof(value)));
}

void set_timeout(int socket, int option, std::chrono::milliseconds timeout) {
  const timeval value{.tv_sec = timeout.count() / 1000, .tv_usec = (timeout.count() % 1000) * 1000};
  TESSERA_SYSTEM(setsockopt(socket, SOL_SOCKET, option, &value, sizeof(value)));
}

// False when the connection ends before the first byte.
bool receive_exactly(int socket, char* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t count = recv(socket, to + done, bytes - done, 0);
    if (count < 0 && errno == EINTR) continue;
    const bool over_time = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (done == 0 && (count == 0 || over_time)) return false;
    if (over_time) {
      throw Stalled(ErrorCode::rank_failed,
                    "the other end of a control connection stopped in the middle of a message");
    }
    TESSERA_CHECK(count > 0, ErrorCode::rank_failed, "a control connection broke: {}",
                  count == 0 ? "the other end closed it in the middle of a message"
                             : describe_errno("recv", errno));
    done += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

void send_frame(int socket, FrameHeader header, std::string_view payload, Session* session) {
  header.bytes = payload.size();
  std::string sealed;
  const bool seals = session != nullptr && session->seals();
  if (seals) payload = sealed = session->seal(header, payload);
  std::array<iovec, 2> parts{iovec{&header, seals ? 0 : sizeof(header)},
                             iovec{const_cast<char*>(payload.data()), payload.size()}};
  std::size_t first = 0;
  while (first < parts.size()) {
    msghdr message{};
    message.msg_iov = parts.data() + first;
    message.msg_iovlen = parts.size() - first;
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      throw Stalled(ErrorCode::rank_failed,
                    "the other end of a control connection does not receive");
    }
    TESSERA_CHECK(sent >= 0, ErrorCode::rank_failed, "a control connection broke: {}",
                  describe_errno("sendmsg", errno));
    auto left = static_cast<std::size_t>(sent);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first < parts.size()) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
      parts[first].iov_len -= left;
    }
  }
}

std::optional<Frame> receive_frame(int socket, Session* session) {
  Frame frame;
  const bool opens = session != nullptr && session->seals();
  std::array<char, Session::header_bytes> head;
  if (!receive_exactly(socket, head.data(), opens ? head.size() : sizeof(frame.header))) {
    return std::nullopt;
  }
  if (opens) {
    frame.header = session->open_header({head.data(), head.size()});
  } else {
    std::memcpy(&frame.header, head.data(), sizeof(frame.header));
  }
  TESSERA_CHECK(
      frame.header.magic == FrameHeader::magic_number && frame.header.bytes <= max_frame_bytes,
      ErrorCode::rank_failed,
      "a control connection carries something else: another program listens there");
  if (frame.header.bytes == 0) return frame;
  frame.payload.resize(frame.header.bytes + (opens ? Session::tag_bytes : 0));
  TESSERA_CHECK(receive_exactly(socket, frame.payload.data(), frame.payload.size()),
                ErrorCode::rank_failed, "a control connection broke in the middle of a message");
  if (opens) frame.payload = session->open_payload(frame.payload);
  return frame;
}

std::optional<FileDescriptor> listen_on(int port, bool loopback) {
  FileDescriptor socket_of_hub(TESSERA_SYSTEM(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  set_option(socket_of_hub.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(socket_of_hub.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
      0) {
    if (errno == EADDRINUSE) return std::nullopt;
    fail(ErrorCode::configuration,
         "rank 0 cannot listen on port {}: {}; set MASTER_PORT to another", port,
         describe_errno("bind", errno));
  }
  if (listen(socket_of_hub.get(), SOMAXCONN) != 0) return std::nullopt;
  return socket_of_hub;
}

int port_of(int socket) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  TESSERA_SYSTEM(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes));
  return ntohs(address.sin_port);
}

int port_of_peer(int socket) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  // A connection that the other end has closed meanwhile has no peer.
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.sin_port);
}

std::string address_of_peer(int socket) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  char text[INET_ADDRSTRLEN]{};
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      address.sin_family != AF_INET ||
      inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) == nullptr) {
    return "somewhere";
  }
  return text;
}

namespace {

// False when no process accepts the connection within `patience`; a node that is down does not
// answer at all.
bool reaches(int socket, const addrinfo& to, std::chrono::milliseconds patience) {
  set_blocking(socket, false);
  if (connect(socket, to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return false;
    pollfd wanted{socket, POLLOUT, 0};
    int ready = 0;
    do {
      ready = ::poll(&wanted, 1, static_cast<int>(patience.count()));
    } while (ready < 0 && errno == EINTR);
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (ready <= 0 || getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0) {
      return false;
    }
  }
  set_blocking(socket, true);
  return true;
}

// True for a connection of a socket with itself. Linux makes one where a program calls a port of
// its own host that no program listens on, and gives the call that same port as its source.
bool is_with_itself(int socket) {
  sockaddr_in own{}, peer{};
  socklen_t own_bytes = sizeof(own), peer_bytes = sizeof(peer);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
         own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr;
}

std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status == EAI_AGAIN) {
    throw NoNameServer(ErrorCode::configuration,
                       "rank 0's host '" + host + "': " + gai_strerror(status));
  }
  TESSERA_CHECK(
      status == 0, ErrorCode::configuration,
      "rank 0's host '{}' has no address: {}; MASTER_ADDR, or --master-addr, is a name or "
      "a number that every host can reach",
      host, gai_strerror(status));
  return {found, &freeaddrinfo};
}

}  // namespace

void require_address(const std::string& host) {
  constexpr int any_port = 1;
  (void)addresses_of(host, any_port);
}

std::optional<FileDescriptor> connect_to(const std::string& host, int port,
                                         std::chrono::milliseconds patience) {
  const auto found = addresses_of(host, port);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor connection(
        TESSERA_SYSTEM(socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol)));
    if (!reaches(connection.get(), *one, patience) || is_with_itself(connection.get())) continue;
    set_option(connection.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return connection;
  }
  return std::nullopt;
}

bool is_loopback(const std::string& host) {
  constexpr std::uint32_t loopback_net = 127;
  in_addr address{};
  if (host == "localhost") return true;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 &&
         ntohl(address.s_addr) >> 24 == loopback_net;
}

void prepare_connection(int socket, std::chrono::milliseconds silence) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // small frames must not wait for each other
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
  set_option(socket, IPPROTO_IP, IP_TOS, IPTOS_LOWDELAY);
}

void set_blocking(int socket, bool blocking) {
  const int flags = TESSERA_SYSTEM(fcntl(socket, F_GETFL, 0));
  TESSERA_SYSTEM(fcntl(socket, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK));
}

void set_receive_timeout(int socket, std::chrono::milliseconds timeout) {
  set_timeout(socket, SO_RCVTIMEO, timeout);
}

void set_send_timeout(int socket, std::chrono::milliseconds timeout) {
  set_timeout(socket, SO_SNDTIMEO, timeout);
}

std::string_view Reader::take(std::uint64_t bytes) {
  TESSERA_CHECK(bytes <= rest_.size(), ErrorCode::rank_failed,
                "a control message is too short: do all ranks run the same version?");
  const std::string_view part = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return part;
}

}  // namespace tessera::comm::control
