// Programs between a caller and its host: they pass connections on, change, record and repeat.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/control/bootstrap.h"
#include "comm/control/door_testing.h"
#include "support/expect_parts.h"

namespace tessera::comm::control {
namespace {

using tessera::testing::expect_parts;
using namespace doors;

std::string unchanged(bool, std::string bytes) {
  return bytes;
}

// Overwrites bytes of the first frame from one end, after the frame's header.
Relay::Edit overwriting(bool of_caller, std::size_t at, const std::string& with) {
  return [=, done = false](bool from_caller, std::string bytes) mutable {
    if (done || from_caller != of_caller) return bytes;
    done = true;
    return bytes.replace(sizeof(FrameHeader) + at, with.size(), with);
  };
}

TEST(ControlRelay, ARelayOnAnotherPortIsRefusedByName) {
  OpenDoor door(the_key());
  Relay relay("127.0.0.1", 0, door.port(), unchanged);
  const std::string ports = "a connection was made to port " + std::to_string(relay.port()) +
                            " and arrived at port " + std::to_string(door.port()) +
                            ": another program passes connections on";
  expect_parts(call(relay.port(), the_key()), {"not ours: ", ports});
  door.close();
  EXPECT_TRUE(door.introductions.empty());
  ASSERT_EQ(door.lines.size(), 1u);
  expect_parts(door.lines[0], {"the test turned a connection from 127.0.0.1 away", ports});
}

// The port that the caller says is covered by its proof.
TEST(ControlRelay, ARelayCannotChangeThePort) {
  OpenDoor door(the_key());
  int frames = 0;
  Relay relay("127.0.0.1", 0, door.port(), [&](bool from_caller, std::string bytes) {
    if (!from_caller || ++frames != 2) return bytes;
    const auto port = static_cast<std::uint32_t>(door.port());
    return bytes.replace(sizeof(FrameHeader) + sizeof(Proof), sizeof port,
                         reinterpret_cast<const char*>(&port), sizeof port);
  });
  expect_parts(call(relay.port(), the_key()), {"not ours: ", "does not know this job's key"});
  door.close();
  EXPECT_TRUE(door.introductions.empty());
}

// Where the relay has the host's port number, at another address, it can pass on and no more.
TEST(ControlRelay, ADowngradeFails) {
  const auto called_through = [](const JobKey& host, const JobKey& caller, Relay::Edit edit) {
    OpenDoor door(host);
    Relay relay("127.0.0.2", door.port(), door.port(), std::move(edit));
    const FileDescriptor connection = *connect_to("127.0.0.2", door.port());
    std::string answer;
    try {
      answer = introduce(connection.get(), meeting_of("test", "run", caller), "a caller", 5s)
                   .introduction;
    } catch (const NotOurHub& error) {
      answer = std::string("not ours: ") + error.what();
    } catch (const Error& error) {
      answer = std::string("refused: ") + error.what();
    }
    door.close();
    EXPECT_EQ(door.introductions.size(), answer == "the host" ? 1u : 0u);
    return answer;
  };
  const std::string none(4, '\0'), version_3("\3\0\0\0", 4);
  EXPECT_EQ(called_through(the_key(), the_key(), unchanged), "the host");
  // "I have no key", from either side.
  expect_parts(called_through(the_key(), the_key(), overwriting(true, 4, none)),
               {"not ours: ", "does not know this job's key"});
  expect_parts(called_through(the_key(), the_key(), overwriting(false, 4, none)),
               {"not ours: ", "it has none"});
  // An older protocol. Refusals without a proof are not trusted.
  expect_parts(called_through(the_key(), the_key(), overwriting(true, 0, version_3)),
               {"not ours: ", "another version"});
  expect_parts(called_through(the_key(), the_key(), overwriting(false, 0, version_3)),
               {"not ours: ", "does not know this job's key"});
  // Public keys of the relay's own.
  const std::string own(32, '\7');
  expect_parts(called_through(the_key(), the_key(), overwriting(true, 16, own)),
               {"not ours: ", "does not know this job's key"});
  expect_parts(called_through(the_key(), the_key(), overwriting(false, 8, own)),
               {"not ours: ", "does not know this job's key"});
  // Sides that differ, with a relay that says what each wants to hear.
  const std::string one("\1\0\0\0", 4);
  expect_parts(called_through(JobKey(), the_key(), overwriting(false, 4, one)), {"not ours: "});
  expect_parts(called_through(the_key(), JobKey(), overwriting(false, 4, none)), {"not ours: "});
}

// Jobs with one key: a door of one is not a door of the other.
TEST(ControlRelay, AConnectionIsNotPassedOnToAnotherJobWithTheKey) {
  OpenDoor door(the_key());
  const std::uint64_t id = meeting_of("test", "run", {}).id;
  Relay relay("127.0.0.2", door.port(), door.port(),
              overwriting(true, 8, {reinterpret_cast<const char*>(&id), sizeof id}));
  const FileDescriptor connection = *connect_to("127.0.0.2", door.port());
  EXPECT_THROW(
      introduce(connection.get(), meeting_of("test", "another run", the_key()), "a caller", 5s),
      NotOurHub);
  door.close();
  EXPECT_TRUE(door.introductions.empty());
}

TEST(ControlRelay, ARecordedHelloIsUseless) {
  OpenDoor door(the_key());
  std::string recorded;
  Relay relay("127.0.0.2", door.port(), door.port(), [&](bool from_caller, std::string bytes) {
    if (from_caller) recorded += bytes;
    return bytes;
  });
  {
    const FileDescriptor caller = *connect_to("127.0.0.2", door.port());
    EXPECT_EQ(
        introduce(caller.get(), meeting_of("test", "run", the_key()), "a caller", 5s).introduction,
        "the host");
  }
  relay.close();
  const FileDescriptor again = connection_to(door.port());
  send_all(again.get(), recorded);
  EXPECT_LT(until_hung_up(again.get()), 2s);
  door.close();
  EXPECT_EQ(door.introductions.size(), 1u);
  ASSERT_EQ(door.lines.size(), 1u);
  expect_parts(door.lines[0], {"it does not know the job's key"});
}

// Nothing that a caller gets before its proof depends on the key, so that it cannot try keys.
TEST(ControlRelay, TheDoorProvesNothingToAStranger) {
  OpenDoor door(the_key());
  const FileDescriptor stranger = connection_to(door.port());
  send_all(stranger.get(), knock(this_protocol, meeting_of("test", "run", {})));
  const auto challenge = receive_frame(stranger.get());
  ASSERT_TRUE(challenge.has_value());
  EXPECT_EQ(challenge->header.kind, FrameKind::challenge);
  // Protocol, "has a key", and a public key, which is random.
  EXPECT_EQ(challenge->payload.size(), 8 + sizeof(PublicKey));
  send_all(stranger.get(), frame_of(FrameKind::hello, std::string(100, 'x')));
  const auto refusal = receive_frame(stranger.get());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->header.kind, FrameKind::refusal);
  EXPECT_EQ(refusal->payload, std::string(sizeof(Proof) + sizeof(StreamHeader), '\0'));
  EXPECT_LT(until_hung_up(stranger.get()), 2s);
}

// Two ranks that exchange messages until they fail, the second through a relay. Their failures.
std::vector<std::string> failures_behind(const Relay::Edit& edit) {
  const int port = port_of(listen_on(0, true)->get());
  Relay relay("127.0.0.2", port, port, edit);
  return failures_of_two([port](int rank) {
    const char* address = rank == 0 ? "127.0.0.1" : "127.0.0.2";
    const ControlPlane plane = connect_control_plane(world_of_two(rank, port, address, "relay"),
                                                     {30s, 30s, 5s}, the_key());
    HubGroup group(plane.control, {0, 1}, 1, "world");
    for (std::uint64_t step = 1; step < 2000; ++step) {
      (void)group.exchange(Call(Op::exchange, {.step = step}), "a message");
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST(ControlRelay, ARelayThatPassesOnUnchangedIsNotNoticed) {
  for (const std::string& failure : failures_behind(unchanged)) EXPECT_EQ(failure, "");
}

// From the 40th piece on, which is after the handshake.
TEST(ControlRelay, WhatChangesOneFrameEndsTheJobAndNamesTheConnection) {
  for (const bool of_caller : {true, false}) {
    for (const char* attack : {"change", "repeat", "omit", "reflect"}) {
      const std::string kind = attack;
      int pieces = 0;
      std::string earlier;  // of the other direction
      const auto failures = failures_behind([&](bool from_caller, std::string bytes) {
        if (from_caller != of_caller) earlier = bytes;
        if (from_caller != of_caller || ++pieces != 40) return bytes;
        if (kind == "change") bytes.back() = static_cast<char>(bytes.back() ^ 1);
        if (kind == "repeat") return bytes + bytes;
        if (kind == "omit") return std::string();
        if (kind == "reflect") return earlier;
        return bytes;
      });
      const std::string peer = of_caller ? "rank 1 (pid " : "rank 0 (pid ";
      expect_parts(failures[of_caller ? 0 : 1], {peer, "changed, repeated or left out"});
      EXPECT_NE(failures[of_caller ? 1 : 0], "") << kind;
    }
  }
}

}  // namespace
}  // namespace tessera::comm::control
