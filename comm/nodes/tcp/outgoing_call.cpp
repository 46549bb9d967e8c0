// The stages of a call.
#include "comm/nodes/tcp/outgoing_call.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds retry_interval{20};

sockaddr_in socket_address(const std::string& address, int port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<std::uint16_t>(port));
  TESSERA_CHECK(inet_pton(AF_INET, address.c_str(), &result.sin_addr) == 1,
                ErrorCode::configuration, "'{}' is not an IPv4 address", address);
  return result;
}

}  // namespace

OutgoingCall::OutgoingCall(std::uint64_t channel, int rank, const Contact& own,
                           const NamedContact& peer)
    : channel_(channel),
      rank_(rank),
      own_(own),
      peer_(peer),
      where_(peer.contact.machine == own.machine ? "127.0.0.1" : peer.contact.address) {}

bool OutgoingCall::step(const std::function<void()>& look) {
  if (stage_ == Stage::apart && Clock::now() >= next_try_) begin();
  if (stage_ == Stage::connecting) finish_connecting();
  return stage_ == Stage::greeted && hear_answer(look);
}

pollfd OutgoingCall::wanted() const {
  return {socket_.get(), static_cast<short>(stage_ == Stage::connecting ? POLLOUT : POLLIN), 0};
}

void OutgoingCall::begin() {
  const sockaddr_in address = socket_address(where_, peer_.contact.port);
  socket_ = FileDescriptor(
      TESSERA_SYSTEM(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return say_hello();
  }
  if (errno != EINPROGRESS) return retry_later(errno);
  stage_ = Stage::connecting;
}

void OutgoingCall::finish_connecting() {
  pollfd wanted{socket_.get(), POLLOUT, 0};
  if (::poll(&wanted, 1, 0) <= 0) return;
  int error = 0;
  socklen_t bytes = sizeof(error);
  TESSERA_SYSTEM(getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes));
  if (error != 0) return retry_later(error);
  say_hello();
}

void OutgoingCall::retry_later(int error) {
  last_ = describe_errno("connect", error);
  socket_.reset();
  stage_ = Stage::apart;
  next_try_ = Clock::now() + retry_interval;
}

void OutgoingCall::say_hello() {
  hello_ = make_hello(channel_, rank_, peer_.rank, peer_.contact.secret);
  // The hello fits into the empty buffer of a new connection; a failure shows in the answer.
  (void)::send(socket_.get(), &hello_, sizeof(hello_), MSG_NOSIGNAL);
  stage_ = Stage::greeted;
}

bool OutgoingCall::hear_answer(const std::function<void()>& look) {
  while (heard_ < sizeof(answer_)) {
    const ssize_t bytes = recv(socket_.get(), reinterpret_cast<std::byte*>(&answer_) + heard_,
                               sizeof(answer_) - heard_, MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (bytes <= 0) look();
    TESSERA_CHECK(bytes > 0, ErrorCode::rank_failed, "{} closed the connection that rank {} made",
                  peer_.name, rank_);
    heard_ += static_cast<std::size_t>(bytes);
  }
  TESSERA_CHECK(is_genuine(answer_, hello_, peer_.contact.secret), ErrorCode::rank_failed,
                "another program listens at the address of {}", peer_.name);
  const Mac confirmation = make_confirmation(hello_, answer_, peer_.contact.secret);
  (void)::send(socket_.get(), confirmation.data(), confirmation.size(), MSG_NOSIGNAL);
  return true;
}

FrameKeys OutgoingCall::keys() const {
  return frame_keys(DataEnd::caller, hello_, answer_, own_, peer_.contact);
}

void OutgoingCall::fail_late() const {
  if (stage_ == Stage::greeted) {
    fail(ErrorCode::rank_failed, "{} took the connection of rank {} and did not answer", peer_.name,
         rank_);
  }
  fail(ErrorCode::rank_failed,
       "rank {} cannot connect to {} at {} port {}: {}; data goes between hosts over ports that "
       "the system chooses: open them in the firewall, or name an address that the other hosts "
       "reach (TESSERA_HOST_ADDRESS)",
       rank_, peer_.name, where_, peer_.contact.port, last_);
}

}  // namespace tessera::comm
