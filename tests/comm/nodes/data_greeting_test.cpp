// The three messages of a connection for data, and the keys that follow: what is changed, repeated,
// sent back or meant for another rank is refused, and does not keep a rank out.
#include "comm/nodes/tcp/greeting.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/nodes/socket_pairs.h"
#include "comm/nodes/tcp/meeting.h"
#include "tests/support/expect_parts.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::bytes_of_object;
using tessera::testing::connect_to_port;
using tessera::testing::expect_parts;
using tessera::testing::heard_from;
using tessera::testing::say;

Contact contact_of(const std::string& machine, Protection protection) {
  return {.machine = machine,
          .address = "127.0.0.1",
          .port = 1,
          .secret = control::make_nonce(),
          .protection = protection};
}

// Calls fn with copies of the object in each of which one bit differs.
template <class T, class Fn>
void with_each_byte_changed(const T& object, Fn fn) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    T changed = object;
    reinterpret_cast<unsigned char*>(&changed)[i] ^= 4;
    fn(changed, i);
  }
}

TEST(DataGreeting, EveryChangeIsNoticed) {
  const Contact called = contact_of("a", Protection::authenticated);
  const Contact other = contact_of("b", Protection::authenticated);
  const DataHello hello = make_hello(7, 0, 1, called.secret);
  const DataAnswer answer = make_answer(hello, called.secret);
  const Mac confirmation = make_confirmation(hello, answer, called.secret);
  EXPECT_TRUE(is_genuine(hello, called.secret));
  EXPECT_TRUE(is_genuine(answer, hello, called.secret));
  EXPECT_TRUE(is_genuine(confirmation, hello, answer, called.secret));
  EXPECT_FALSE(is_genuine(hello, other.secret));  // for another rank's port
  EXPECT_FALSE(is_genuine(answer, hello, other.secret));
  with_each_byte_changed(hello, [&](const DataHello& changed, std::size_t at) {
    EXPECT_FALSE(is_genuine(changed, called.secret)) << at;
    EXPECT_FALSE(is_genuine(answer, changed, called.secret)) << at;
    EXPECT_FALSE(is_genuine(confirmation, changed, answer, called.secret)) << at;
  });
  with_each_byte_changed(answer, [&](const DataAnswer& changed, std::size_t at) {
    EXPECT_FALSE(is_genuine(changed, hello, called.secret)) << at;
    EXPECT_FALSE(is_genuine(confirmation, hello, changed, called.secret)) << at;
  });
  with_each_byte_changed(confirmation, [&](const Mac& changed, std::size_t at) {
    EXPECT_FALSE(is_genuine(changed, hello, answer, called.secret)) << at;
  });
  EXPECT_NE(answer.mac, confirmation);
  EXPECT_NE(answer.mac, hello.mac);
}

TEST(DataGreeting, BothEndsHaveTheSameKeysAndNoOtherConnectionHas) {
  std::set<FrameKeys::Key> keys;
  std::size_t expected = 0;
  Contact caller = contact_of("a", Protection::authenticated);
  Contact called = contact_of("b", Protection::authenticated);
  const auto add = [&](const DataHello& hello, const DataAnswer& answer) {
    const FrameKeys here = frame_keys(DataEnd::caller, hello, answer, caller, called);
    const FrameKeys there = frame_keys(DataEnd::called, hello, answer, caller, called);
    EXPECT_EQ(here.sending, there.receiving);
    EXPECT_EQ(here.receiving, there.sending);
    keys.insert(here.sending);
    keys.insert(here.receiving);
    EXPECT_EQ(keys.size(), expected += 2);
  };
  const DataHello hello = make_hello(7, 0, 1, called.secret);
  const DataAnswer answer = make_answer(hello, called.secret);
  add(hello, answer);
  add(hello, make_answer(hello, called.secret));    // the called rank's number differs
  add(make_hello(7, 0, 1, called.secret), answer);  // the caller's
  DataHello other = hello;
  other.channel = 8;
  add(other, answer);
  other = hello;
  other.from = 2;
  add(other, answer);
  other = hello;
  other.to = 2;
  add(other, answer);
  caller.secret[0] ^= 1;
  add(hello, answer);
  called.secret[0] ^= 1;
  add(hello, answer);
  caller.aes = called.aes = true;
  add(hello, answer);
  caller.protection = called.protection = Protection::encrypted;
  add(hello, answer);
}

TEST(DataGreeting, OneMachineNeedsNoTagsAndEncryptionHasNoException) {
  for (const Protection all :
       {Protection::none, Protection::authenticated, Protection::encrypted}) {
    const Contact a = contact_of("a", all), b = contact_of("b", all), a2 = contact_of("a", all);
    EXPECT_EQ(protection_between(a, b), all);
    EXPECT_EQ(protection_between(a, a2),
              all == Protection::encrypted ? Protection::encrypted : Protection::none);
  }
}

// Passes one connection on to a port, and keeps what the caller said. Held, it keeps it to itself.
class Relay {
 public:
  explicit Relay(int to) : listener_(*control::listen_on(0, true)), to_(to) {
    thread_ = std::thread([this] { pass_on(); });
  }
  ~Relay() {
    ended_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] int port() const { return control::port_of(listener_.get()); }
  void hold(bool held) { held_ = held; }
  [[nodiscard]] std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

 private:
  void pass_on() {
    FileDescriptor caller;
    while (!ended_ && caller.get() < 0) {
      std::this_thread::sleep_for(1ms);
      caller = FileDescriptor(accept(listener_.get(), nullptr, nullptr));
    }
    FileDescriptor called;
    std::size_t passed = 0;
    for (; !ended_; std::this_thread::sleep_for(1ms)) {
      const std::string heard = heard_from(caller);
      const std::lock_guard lock(mutex_);
      said_ += heard;
      if (held_) continue;
      if (called.get() < 0) called = connect_to_port(to_);
      say(called, said_.substr(passed));
      passed = said_.size();
      say(caller, heard_from(called));
    }
  }

  FileDescriptor listener_;
  int to_;
  std::atomic<bool> held_{false}, ended_{false};
  std::mutex mutex_;
  std::string said_;
  std::thread thread_;
};

World two_hosts(int rank) {
  return {.rank = rank, .size = 2, .local_size = 1, .node_rank = rank};
}

// The other rank as if it were on another machine.
Meeting::Peer distant(int rank, const Meeting& meeting) {
  Meeting::Peer peer{rank, meeting.contact(), "rank " + std::to_string(rank)};
  peer.contact.machine += " of rank " + std::to_string(rank);
  peer.contact.address = "127.0.0.1";
  return peer;
}

struct Ends {
  Meeting::Connection zero, one;
};

Ends connect_pair(Meeting& zero, Meeting& one, const Meeting::Peer& seen_by_zero) {
  Ends ends;
  std::thread other(
      [&] { ends.one = std::move(one.connect(1, {distant(0, zero)}, 20s, [] {}).front()); });
  ends.zero = std::move(zero.connect(1, {seen_by_zero}, 20s, [] {}).front());
  other.join();
  return ends;
}

std::string error_of_connect(Meeting& meeting, const Meeting::Peer& peer,
                             std::chrono::milliseconds limit) {
  try {
    (void)meeting.connect(1, {peer}, limit, [] {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::rank_failed);
    return error.what();
  }
  return "connected";
}

TEST(DataGreeting, ConnectedRanksHaveTheKeysOfTheirProtection) {
  for (const Protection all :
       {Protection::none, Protection::authenticated, Protection::encrypted}) {
    Meeting zero(two_hosts(0), all), one(two_hosts(1), all);
    const Ends ends = connect_pair(zero, one, distant(1, one));
    EXPECT_EQ(ends.zero.keys.protection, all);
    EXPECT_EQ(ends.one.keys.protection, all);
    EXPECT_EQ(ends.zero.keys.sending, ends.one.keys.receiving);
    EXPECT_EQ(ends.zero.keys.receiving, ends.one.keys.sending);
    EXPECT_EQ(ends.zero.keys.sending == FrameKeys::Key{}, all == Protection::none);
    EXPECT_EQ(ends.zero.keys.aes, all != Protection::none && has_aes());
  }
}

TEST(DataGreeting, TheSecretsAreNotOnTheWire) {
  Meeting zero(two_hosts(0), Protection::authenticated),
      one(two_hosts(1), Protection::authenticated);
  Relay relay(one.contact().port);
  Meeting::Peer peer = distant(1, one);
  peer.contact.port = relay.port();
  const Ends ends = connect_pair(zero, one, peer);
  EXPECT_EQ(ends.zero.keys.sending, ends.one.keys.receiving);  // a relay is only part of the way
  const std::string said = relay.said();
  EXPECT_EQ(said.size(), sizeof(DataHello) + sizeof(Mac));
  for (const Meeting* meeting : {&zero, &one}) {
    const std::string secret(bytes_of_object(meeting->contact().secret));
    EXPECT_EQ(said.find(secret.substr(0, 8)), std::string::npos);
  }
}

TEST(DataGreeting, ARecordedCallIsNotTakenAgain) {
  Meeting zero(two_hosts(0), Protection::authenticated),
      one(two_hosts(1), Protection::authenticated);
  Relay relay(one.contact().port);
  Meeting::Peer peer = distant(1, one);
  peer.contact.port = relay.port();
  (void)connect_pair(zero, one, peer);
  const FileDescriptor stranger = connect_to_port(one.contact().port);
  say(stranger, relay.said());
  expect_parts(error_of_connect(one, distant(0, zero), 500ms), {"rank 0 did not connect"});
  EXPECT_EQ(heard_from(stranger).size(), sizeof(DataAnswer));
  char byte = 0;
  EXPECT_EQ(recv(stranger.get(), &byte, 1, 0), 0);              // the connection was closed
  expect_parts(error_of_connect(zero, distant(1, one), 500ms),  // the next real call is heard
               {"rank 1 took the connection of rank 0 and did not answer"});
}

// A program that listens on the way says the hello before the rank does, many times.
TEST(DataGreeting, CopiesOfAHelloKeepTheRankNotOut) {
  Meeting zero(two_hosts(0), Protection::authenticated),
      one(two_hosts(1), Protection::authenticated);
  Relay relay(one.contact().port);
  relay.hold(true);
  Meeting::Peer peer = distant(1, one);
  peer.contact.port = relay.port();
  std::vector<FileDescriptor> strangers;
  std::thread on_the_way([&] {
    while (relay.said().size() < sizeof(DataHello)) std::this_thread::sleep_for(1ms);
    for (int i = 0; i < 10; ++i) {
      strangers.push_back(connect_to_port(one.contact().port));
      say(strangers.back(), relay.said());
    }
    pollfd answered{strangers.back().get(), POLLIN, 0};
    EXPECT_EQ(poll(&answered, 1, 10'000), 1);
    say(strangers.front(), std::string(sizeof(Mac), 'x'));
    relay.hold(false);
  });
  const Ends ends = connect_pair(zero, one, peer);
  on_the_way.join();
  EXPECT_EQ(ends.zero.keys.sending, ends.one.keys.receiving);
  EXPECT_EQ(ends.zero.keys.receiving, ends.one.keys.sending);
}

TEST(DataGreeting, HellosOfStrangersAreClosedWithoutAnAnswer) {
  Meeting zero(two_hosts(0), Protection::authenticated),
      one(two_hosts(1), Protection::authenticated);
  DataHello wrong_mac = make_hello(1, 0, 1, one.contact().secret);
  wrong_mac.mac[31] ^= 1;
  DataHello wrong_magic = make_hello(1, 0, 1, one.contact().secret);
  wrong_magic.magic -= std::uint64_t{1} << 56;  // tsldata1
  const std::vector<DataHello> hellos{
      wrong_mac, wrong_magic, make_hello(1, 0, 1, zero.contact().secret),  // for another port
      make_hello(1, 0, 5, one.contact().secret)};                          // for another rank
  for (const DataHello& hello : hellos) {
    const FileDescriptor stranger = connect_to_port(one.contact().port);
    say(stranger, bytes_of_object(hello));
    expect_parts(error_of_connect(one, distant(0, zero), 200ms), {"rank 0 did not connect"});
    char byte = 0;
    EXPECT_EQ(recv(stranger.get(), &byte, 1, 0), 0);
  }
  const Ends ends = connect_pair(zero, one, distant(1, one));
  EXPECT_EQ(ends.zero.keys.sending, ends.one.keys.receiving);
}

// Another program listens at a rank's port: it sends bytes of its own, or the hello back.
TEST(DataGreeting, AnAnswerWithoutTheSecretIsRefused) {
  Meeting zero(two_hosts(0), Protection::authenticated),
      one(two_hosts(1), Protection::authenticated);
  for (const bool reflects : {false, true}) {
    FileDescriptor listener(*control::listen_on(0, true));
    Meeting::Peer peer = distant(1, one);
    peer.contact.port = control::port_of(listener.get());
    std::thread program([&] {
      control::set_blocking(listener.get(), true);
      const FileDescriptor caller(accept(listener.get(), nullptr, nullptr));
      std::string heard(sizeof(DataHello), 'x');
      EXPECT_EQ(recv(caller.get(), heard.data(), heard.size(), MSG_WAITALL),
                static_cast<ssize_t>(sizeof(DataHello)));
      say(caller, reflects ? heard : std::string(sizeof(DataAnswer), 'x'));
      char byte = 0;
      EXPECT_LE(recv(caller.get(), &byte, 1, 0), 0);  // the rank has hung up
    });
    expect_parts(error_of_connect(zero, peer, 20s),
                 {"another program listens at the address of rank 1"});
    program.join();
  }
}

}  // namespace
}  // namespace tessera::comm
