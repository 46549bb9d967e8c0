// Listening, calling, and rejecting connections of other programs.
#include "comm/nodes/tcp/meeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "comm/control/wire.h"
#include "comm/nodes/tcp/own_address.h"
#include "comm/wait_notice.h"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds look_interval{20};
// A caller sends its hello at once.
constexpr std::chrono::seconds hello_time{10};
// All ranks of another node may come at once, with a connection for each communicator.
constexpr CrowdLimits guest_limits{.all = 512, .of_one_address = 384};

Contact::Secret random_secret() {
  Contact::Secret secret{};
  std::size_t filled = 0;
  while (filled < sizeof(secret)) {
    const ssize_t bytes =
        getrandom(reinterpret_cast<std::byte*>(secret.data()) + filled, sizeof(secret) - filled, 0);
    TESSERA_CHECK(bytes >= 0 || errno == EINTR, ErrorCode::runtime, "{}",
                  describe_errno("getrandom", errno));
    if (bytes > 0) filled += static_cast<std::size_t>(bytes);
  }
  return secret;
}

// Takes the same time wherever they differ.
bool equal_secrets(const Contact::Secret& a, const Contact::Secret& b) {
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

sockaddr_in socket_address(const std::string& address, int port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<std::uint16_t>(port));
  TESSERA_CHECK(inet_pton(AF_INET, address.c_str(), &result.sin_addr) == 1,
                ErrorCode::configuration, "'{}' is not an IPv4 address", address);
  return result;
}

bool poll_one(int socket, short events) {
  pollfd wanted{socket, events, 0};
  return ::poll(&wanted, 1, static_cast<int>(look_interval.count())) > 0;
}

}  // namespace

std::string encode(const Contact& contact) {
  control::Writer writer;
  writer.text(contact.machine);
  writer.text(contact.address);
  writer.number(contact.port);
  writer.number(contact.callers);
  writer.number(contact.answer);
  return writer.bytes();
}

Contact decode_contact(std::string_view text) {
  control::Reader reader(text);
  Contact contact;
  contact.machine = reader.text();
  contact.address = reader.text();
  contact.port = reader.number<std::int32_t>();
  contact.callers = reader.number<Contact::Secret>();
  contact.answer = reader.number<Contact::Secret>();
  return contact;
}

Meeting::Meeting(const World& world) : rank_(world.rank) {
  listener_ = FileDescriptor(
      TESSERA_SYSTEM(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  TESSERA_SYSTEM(
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
  TESSERA_SYSTEM(listen(listener_.get(), SOMAXCONN));
  contact_ = {.machine = own_machine(),
              .address = own_address(world.master_address),
              .port = control::port_of(listener_.get()),
              .callers = random_secret(),
              .answer = random_secret()};
}

// Ranks call those with higher numbers, so that there is one connection for each pair.
std::vector<FileDescriptor> Meeting::connect(std::uint64_t channel, const std::vector<Peer>& peers,
                                             std::chrono::milliseconds timeout,
                                             const std::function<void()>& look) {
  const auto deadline = Clock::now() + timeout;
  WaitNotice notice(timeout);
  std::vector<FileDescriptor> connections(peers.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const auto look_and_say = [&] {
      look();
      notice.look([&] {
        return fmt::format("rank {} waits for {} at {} port {}", rank_, peers[i].name,
                           peers[i].contact.address, peers[i].contact.port);
      });
    };
    if (peers[i].rank > rank_) connections[i] = call(channel, peers[i], deadline, look_and_say);
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    while (peers[i].rank < rank_ && connections[i].get() < 0) {
      if (auto arrived = take_arrived(channel, peers[i].rank)) {
        connections[i] = std::move(*arrived);
        break;
      }
      TESSERA_CHECK(Clock::now() < deadline, ErrorCode::rank_failed,
                    "{} did not connect to rank {} at {} port {} within {} s; can its host reach "
                    "that address (TESSERA_HOST_ADDRESS names another)?",
                    peers[i].name, rank_, contact_.address, contact_.port,
                    std::chrono::duration<double>(timeout).count());
      look();
      notice.look([&] {
        return fmt::format("rank {} waits for {} to connect to {} port {}", rank_, peers[i].name,
                           contact_.address, contact_.port);
      });
      (void)poll_one(listener_.get(), POLLIN);
    }
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].rank > rank_) await_answer(connections[i].get(), peers[i], deadline, look);
  }
  return connections;
}

FileDescriptor Meeting::call(std::uint64_t channel, const Peer& peer, Clock::time_point deadline,
                             const std::function<void()>& look) const {
  const Contact& contact = peer.contact;
  const bool same_machine = contact.machine == contact_.machine;
  const std::string where = same_machine ? "127.0.0.1" : contact.address;
  const sockaddr_in address = socket_address(where, contact.port);
  std::string last = "no answer";
  do {
    FileDescriptor socket(
        TESSERA_SYSTEM(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    int result =
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    int error = result == 0 ? 0 : errno;
    while (error == EINPROGRESS && Clock::now() < deadline) {
      look();
      if (!poll_one(socket.get(), POLLOUT)) continue;
      socklen_t bytes = sizeof(error);
      TESSERA_SYSTEM(getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes));
    }
    if (error == 0) {
      const Hello hello{
          .channel = channel, .from = rank_, .to = peer.rank, .secret = contact.callers};
      // The hello fits into the empty buffer of a new connection; a failure shows in the answer.
      (void)::send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
      return socket;
    }
    last = describe_errno("connect", error);
    look();
    std::this_thread::sleep_for(look_interval);
  } while (Clock::now() < deadline);
  fail(ErrorCode::rank_failed,
       "rank {} cannot connect to {} at {} port {}: {}; data goes between hosts over ports that "
       "the system chooses: open them in the firewall, or name an address that the other hosts "
       "reach (TESSERA_HOST_ADDRESS)",
       rank_, peer.name, where, contact.port, last);
}

void Meeting::await_answer(int socket, const Peer& peer, Clock::time_point deadline,
                           const std::function<void()>& look) const {
  Contact::Secret answer{};
  std::size_t heard = 0;
  while (heard < sizeof(answer)) {
    const ssize_t bytes = recv(socket, reinterpret_cast<std::byte*>(answer.data()) + heard,
                               sizeof(answer) - heard, MSG_DONTWAIT);
    if (bytes > 0) {
      heard += static_cast<std::size_t>(bytes);
      continue;
    }
    const bool waits = bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    look();
    TESSERA_CHECK(waits, ErrorCode::rank_failed, "{} closed the connection that rank {} made",
                  peer.name, rank_);
    TESSERA_CHECK(Clock::now() < deadline, ErrorCode::rank_failed,
                  "{} took the connection of rank {} and did not answer", peer.name, rank_);
    (void)poll_one(socket, POLLIN);
  }
  TESSERA_CHECK(equal_secrets(answer, peer.contact.answer), ErrorCode::rank_failed,
                "another program listens at the address of {}", peer.name);
}

std::optional<FileDescriptor> Meeting::take_arrived(std::uint64_t channel, int rank) {
  const std::lock_guard lock(mutex_);
  receive_guests();
  const auto found = arrived_.find({channel, rank});
  if (found == arrived_.end()) return std::nullopt;
  FileDescriptor socket = std::move(found->second);
  arrived_.erase(found);
  return socket;
}

// The caller holds the mutex. A connection for another channel is kept for the thread that opens
// that channel.
void Meeting::receive_guests() {
  accept_guests();
  for (Guest& guest : guests_) hear(guest);
  std::erase_if(guests_, [](const Guest& guest) { return guest.over; });
}

void Meeting::accept_guests() {
  const auto look = [this](Guest& guest) {
    hear(guest);
    return guest.over ? Standing::gone : guest.heard > 0 ? Standing::has_spoken : Standing::silent;
  };
  if (!pause_.over()) {
    std::this_thread::sleep_for(look_interval);  // poll() does not wait for this listener
    return;
  }
  for (int i = 0; i < CrowdLimits::accepted_a_turn; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (pause_.makes_room(errno, guests_, look)) continue;
      return;
    }
    const std::string address = control::address_of_peer(socket.get());
    make_room(guests_, guest_limits, address, look);
    Guest& guest = guests_.emplace_back();
    guest.socket = std::move(socket);
    guest.address = address;
    guest.since = Clock::now();
    hear(guest);
    if (guest.over) guests_.pop_back();
  }
}

void Meeting::hear(Guest& guest) {
  auto* memory = reinterpret_cast<std::byte*>(&guest.hello);
  const ssize_t bytes = recv(guest.socket.get(), memory + guest.heard,
                             sizeof(guest.hello) - guest.heard, MSG_DONTWAIT);
  if (bytes > 0) guest.heard += static_cast<std::size_t>(bytes);
  if (guest.heard < sizeof(guest.hello)) {
    const bool waits =
        bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
    guest.over =
        !waits || Clock::now() - guest.since > guest_limits.patience(guests_.size(), hello_time);
    return;
  }
  guest.over = true;
  const Hello& hello = guest.hello;
  if (hello.magic != Hello::magic_number || hello.to != rank_ ||
      !equal_secrets(hello.secret, contact_.callers)) {
    return;  // another program
  }
  // The answer fits into the empty buffer; later code notices a caller that is gone.
  (void)send(guest.socket.get(), contact_.answer.data(), sizeof(contact_.answer), MSG_NOSIGNAL);
  arrived_[{hello.channel, hello.from}] = std::move(guest.socket);
}

}  // namespace tessera::comm
