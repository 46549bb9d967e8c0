// Listening, calling, and rejecting connections of other programs.
#include "comm/nodes/tcp/meeting.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "comm/control/wire.h"
#include "comm/nodes/tcp/own_address.h"
#include "comm/wait_notice.h"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds look_interval{20};
// A caller sends its hello at once.
constexpr std::chrono::seconds hello_time{10};
// A rank confirms at once as well, unless its process is stopped for a while.
constexpr std::chrono::minutes confirmation_time{5};
// All ranks of another node may come at once, with a connection for each communicator.
constexpr CrowdLimits guest_limits{.all = 512, .of_one_address = 384};
// A rank says a hello once. The copies are of a program that has listened on the way; it cannot
// confirm any. Only one of these connections can be the rank's, and all may try.
constexpr std::ptrdiff_t most_copies = 16;

bool is_waiting(ssize_t received) {
  return received > 0 ||
         (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

}  // namespace

Meeting::Meeting(const World& world, Protection protection) : rank_(world.rank) {
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
              .secret = control::make_nonce(),
              .protection = protection,
              .aes = has_aes()};
}

// Ranks call those with higher numbers, so that there is one connection for each pair.
std::vector<Meeting::Connection> Meeting::connect(std::uint64_t channel,
                                                  const std::vector<Peer>& peers,
                                                  std::chrono::milliseconds timeout,
                                                  const std::function<void()>& look) {
  const auto deadline = Clock::now() + timeout;
  WaitNotice notice(timeout);
  std::vector<Connection> connections(peers.size());
  Calls calls(peers.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].rank > rank_) calls[i].emplace(channel, rank_, contact_, peers[i]);
  }
  for (;;) {
    complete(calls, channel, peers, connections, look);
    const auto missing = std::find_if(connections.begin(), connections.end(),
                                      [](const Connection& one) { return one.socket.get() < 0; });
    if (missing == connections.end()) return connections;
    const auto index = static_cast<std::size_t>(missing - connections.begin());
    const Peer& peer = peers[index];
    if (Clock::now() >= deadline) {
      if (calls[index]) calls[index]->fail_late();
      fail(ErrorCode::rank_failed,
           "{} did not connect to rank {} at {} port {} within {} s; can its host reach that "
           "address (TESSERA_HOST_ADDRESS names another)?",
           peer.name, rank_, contact_.address, contact_.port,
           std::chrono::duration<double>(timeout).count());
    }
    look();
    notice.look([&] {
      return calls[index] ? fmt::format("rank {} waits for {} at {} port {}", rank_, peer.name,
                                        peer.contact.address, peer.contact.port)
                          : fmt::format("rank {} waits for {} to connect to {} port {}", rank_,
                                        peer.name, contact_.address, contact_.port);
    });
    wait_for_some(calls);
  }
}

void Meeting::complete(Calls& calls, std::uint64_t channel, const std::vector<Peer>& peers,
                       std::vector<Connection>& connections, const std::function<void()>& look) {
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Connection& connection = connections[i];
    if (connection.socket.get() >= 0) continue;
    if (calls[i]) {
      if (calls[i]->step(look)) connection = {calls[i]->take_socket(), calls[i]->keys()};
    } else if (auto arrived = take_arrived(channel, peers[i])) {
      connection = std::move(*arrived);
    }
  }
}

// Another thread may close a connection of `callers_` meanwhile: the wait is short.
void Meeting::wait_for_some(const Calls& calls) {
  std::vector<pollfd> wanted;
  for (const auto& call : calls) {
    if (call) wanted.push_back(call->wanted());  // poll() leaves those out that are done
  }
  {
    const std::lock_guard lock(mutex_);
    if (pause_.over()) wanted.push_back({listener_.get(), POLLIN, 0});
    for (const Caller& caller : callers_) wanted.push_back({caller.socket.get(), POLLIN, 0});
  }
  (void)::poll(wanted.data(), wanted.size(), static_cast<int>(look_interval.count()));
}

std::optional<Meeting::Connection> Meeting::take_arrived(std::uint64_t channel, const Peer& peer) {
  const std::lock_guard lock(mutex_);
  receive_guests();
  const auto found = arrived_.find({channel, peer.rank});
  if (found == arrived_.end()) return std::nullopt;
  Caller& caller = found->second;
  Connection connection{
      std::move(caller.socket),
      frame_keys(DataEnd::called, caller.hello, caller.answer, peer.contact, contact_)};
  arrived_.erase(found);
  return connection;
}

// The caller holds the mutex. A connection for another channel is kept for the thread that opens
// that channel.
void Meeting::receive_guests() {
  accept_guests();
  for (Guest& guest : guests_) hear(guest);
  std::erase_if(guests_, [](const Guest& guest) { return guest.over; });
  for (Caller& caller : callers_) hear(caller);
  std::erase_if(callers_, [](const Caller& caller) { return caller.over; });
}

void Meeting::accept_guests() {
  const auto look = [this](Guest& guest) {
    hear(guest);
    return guest.over ? Standing::gone : guest.heard > 0 ? Standing::has_spoken : Standing::silent;
  };
  if (!pause_.over()) return;
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
  if (guest.over) return;
  auto* memory = reinterpret_cast<std::byte*>(&guest.hello);
  const ssize_t bytes = recv(guest.socket.get(), memory + guest.heard,
                             sizeof(guest.hello) - guest.heard, MSG_DONTWAIT);
  if (bytes > 0) guest.heard += static_cast<std::size_t>(bytes);
  if (guest.heard < sizeof(guest.hello)) {
    guest.over = !is_waiting(bytes) ||
                 Clock::now() - guest.since > guest_limits.patience(guests_.size(), hello_time);
    return;
  }
  guest.over = true;
  greet(guest);
}

void Meeting::greet(Guest& guest) {
  const DataHello& hello = guest.hello;
  if (!is_genuine(hello, contact_.secret) || hello.to != rank_) return;  // another program
  const auto copies = std::count_if(callers_.begin(), callers_.end(), [&](const Caller& caller) {
    return caller.hello.nonce == hello.nonce;
  });
  if (copies >= most_copies) return;
  Caller& caller = callers_.emplace_back();
  caller.socket = std::move(guest.socket);
  caller.since = Clock::now();
  caller.hello = hello;
  caller.answer = make_answer(hello, contact_.secret);
  // The answer fits into the empty buffer; later code notices a caller that is gone.
  (void)send(caller.socket.get(), &caller.answer, sizeof(caller.answer), MSG_NOSIGNAL);
}

void Meeting::hear(Caller& caller) {
  const ssize_t bytes = recv(caller.socket.get(), caller.confirmation.data() + caller.heard,
                             caller.confirmation.size() - caller.heard, MSG_DONTWAIT);
  if (bytes > 0) caller.heard += static_cast<std::size_t>(bytes);
  if (caller.heard < caller.confirmation.size()) {
    caller.over = !is_waiting(bytes) || Clock::now() - caller.since > confirmation_time;
    return;
  }
  caller.over = true;
  if (!is_genuine(caller.confirmation, caller.hello, caller.answer, contact_.secret)) return;
  const auto place = std::make_pair(caller.hello.channel, caller.hello.from);
  arrived_.insert_or_assign(place, std::move(caller));
}

}  // namespace tessera::comm
