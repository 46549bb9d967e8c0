// Sealed frames: they arrive as they were sent, or opening them fails.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/control/door_testing.h"
#include "comm/control/frame_stream.h"
#include "comm/control/session.h"
#include "support/expect_parts.h"

namespace tessera::comm::control {
namespace {

using doors::the_key;
using doors::two_sessions;
using tessera::testing::expect_parts;

FrameHeader sealed_post(std::uint64_t round, std::size_t bytes) {
  return {.kind = FrameKind::post, .group = 7, .round = round, .bytes = bytes};
}

// The rounds of the frames in these bytes, and the error that ended them.
struct Opened {
  std::vector<std::uint64_t> rounds;
  std::string error;
};
Opened open_all(Session& session, const std::string& bytes) {
  Opened opened;
  FrameAssembler assembler;
  assembler.add(bytes);
  try {
    while (const auto frame = assembler.next(session)) opened.rounds.push_back(frame->header.round);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::rank_failed);
    opened.error = error.what();
  }
  return opened;
}

TEST(ControlSession, FramesOfAnySizeArriveInPieces) {
  std::mt19937 random(5);
  auto [caller, host] = two_sessions(the_key());
  for (Session* from : {&caller, &host}) {
    Session& to = from == &caller ? host : caller;
    std::vector<std::string> payloads;
    std::string bytes;
    for (const std::size_t size : {0U, 1U, 17U, 3000U, 200000U, 0U}) {
      payloads.emplace_back(size, static_cast<char>(random()));
      bytes += from->seal(sealed_post(payloads.size(), size), payloads.back());
    }
    FrameAssembler assembler;
    std::size_t frames = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = std::min<std::size_t>(1 + random() % 5000, bytes.size() - at);
      assembler.add(std::string_view(bytes).substr(at, piece));
      at += piece;
      while (const auto frame = assembler.next(to)) {
        EXPECT_EQ(frame->payload, payloads[frames++]);
        EXPECT_EQ(frame->header.round, frames);
      }
    }
    EXPECT_EQ(frames, payloads.size());
    EXPECT_FALSE(assembler.in_the_middle());
  }
}

TEST(ControlSession, BlockingEndsSealAndOpen) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor one(ends[0]), other(ends[1]);
  auto [caller, host] = two_sessions(the_key());
  const std::string payload(1 << 20, 'p');
  std::jthread sender([&, &from = caller] {
    send_frame(one.get(), {.kind = FrameKind::beat}, {}, &from);
    send_frame(one.get(), {.kind = FrameKind::answer, .round = 3}, payload, &from);
  });
  EXPECT_EQ(receive_frame(other.get(), &host)->header.kind, FrameKind::beat);
  const auto frame = receive_frame(other.get(), &host);
  EXPECT_EQ(frame->header.round, 3u);
  EXPECT_EQ(frame->payload, payload);
}

TEST(ControlSession, NothingOfAFrameIsReadable) {
  auto [caller, host] = two_sessions(the_key());
  const std::string sealed = caller.seal(sealed_post(1, 12), "secret words");
  EXPECT_EQ(sealed.size(), Session::header_bytes + 12 + Session::tag_bytes);
  EXPECT_EQ(sealed.find("secret"), std::string::npos);
  EXPECT_EQ(sealed.find("arst"), std::string::npos);  // the frames' magic number
}

TEST(ControlSession, AChangedBitAnywhereIsNoticed) {
  const std::size_t bytes = 2 * Session::header_bytes + 5 + Session::tag_bytes;
  for (std::size_t bit = 0; bit < 8 * bytes; bit += 3) {
    auto [caller, host] = two_sessions(the_key());
    std::string wire = caller.seal(sealed_post(1, 0), {});
    wire += caller.seal(sealed_post(2, 5), "bytes");
    ASSERT_EQ(wire.size(), bytes);
    wire[bit / 8] = static_cast<char>(wire[bit / 8] ^ (1 << (bit % 8)));
    const Opened opened = open_all(host, wire);
    EXPECT_EQ(opened.rounds.size(), bit / 8 < Session::header_bytes ? 0u : 1u);
    expect_parts(opened.error, {"was changed, repeated or left out on its way",
                                "another program passes the connection on"});
  }
}

TEST(ControlSession, ALengthIsBelievedOnlyWhenItIsAuthentic) {
  auto [caller, host] = two_sessions(the_key());
  FrameAssembler assembler(100);
  assembler.add(caller.seal(sealed_post(1, 101), std::string(101, 'x')).substr(0, 60));
  try {
    (void)assembler.next(host);
    FAIL() << "it is too long";
  } catch (const Error& error) {
    expect_parts(error.what(), {"announces a message of 101 bytes"});
  }
}

TEST(ControlSession, RepeatedReorderedOmittedAndReflectedFramesAreNoticed) {
  const auto opened_with = [](const auto& choose) {
    auto [caller, host] = two_sessions(the_key());
    std::vector<std::string> frames;
    for (const std::uint64_t round : {1U, 2U, 3U}) {
      frames.push_back(caller.seal(sealed_post(round, 4), "four"));
    }
    frames.push_back(host.seal(sealed_post(9, 4), "four"));
    return open_all(host, choose(frames));
  };
  using Frames = std::vector<std::string>;
  using Rounds = std::vector<std::uint64_t>;
  const Opened whole = opened_with([](const Frames& f) { return f[0] + f[1] + f[2]; });
  EXPECT_EQ(whole.rounds, (Rounds{1, 2, 3}));
  EXPECT_EQ(whole.error, "");
  const std::pair<std::function<std::string(const Frames&)>, Rounds> attacks[] = {
      {[](const Frames& f) { return f[0] + f[0]; }, {1}},         // repeated
      {[](const Frames& f) { return f[0] + f[2] + f[1]; }, {1}},  // in another order
      {[](const Frames& f) { return f[1] + f[2]; }, {}},          // without the first
      {[](const Frames& f) { return f[0] + f[3]; }, {1}},         // the host's own
      {[](const Frames& f) { return f[0] + f[1].substr(1) + f[2]; }, {1}},
      {[](const Frames& f) { return f[0].substr(0, 49) + f[1]; }, {}},  // header without payload
  };
  for (const auto& [choose, rounds] : attacks) {
    const Opened opened = opened_with(choose);
    EXPECT_EQ(opened.rounds, rounds);
    expect_parts(opened.error, {"changed, repeated or left out"});
  }
}

// A connection that ends within a frame is an error; between frames it ends without a "leave".
TEST(ControlSession, ATruncatedFrameDoesNotArrive) {
  for (const std::size_t cut : {1U, 48U, 49U, 60U}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    FileDescriptor one(ends[0]);
    const FileDescriptor other(ends[1]);
    auto [caller, host] = two_sessions(the_key());
    doors::send_all(one.get(), caller.seal(sealed_post(1, 4), "four").substr(0, cut));
    one.reset();
    EXPECT_THROW((void)receive_frame(other.get(), &host), Error) << cut;
  }
}

TEST(ControlSession, KeysDependOnTheJobsKeyTheTranscriptAndBothPublicKeys) {
  const auto opens = [](const JobKey& key, const std::string& meeting, bool same_public_key) {
    Handshake caller(Handshake::End::caller, the_key(), "meeting");
    Handshake host(Handshake::End::host, key, meeting);
    const Handshake third(Handshake::End::host, key, meeting);
    EXPECT_TRUE(caller.agree(same_public_key ? host.public_key() : third.public_key()));
    EXPECT_TRUE(host.agree(caller.public_key()));
    const StreamHeader header = caller.stream_header();
    Session from = caller.session(host.stream_header());
    Session to = host.session(header);
    return open_all(to, from.seal(sealed_post(1, 0), {})).error.empty();
  };
  EXPECT_TRUE(opens(the_key(), "meeting", true));
  EXPECT_FALSE(opens(doors::another_key(), "meeting", true));
  EXPECT_FALSE(opens(the_key(), "another", true));
  EXPECT_FALSE(opens(the_key(), "meeting", false));
}

TEST(ControlSession, AnInvalidPublicKeyIsRefused) {
  for (const std::uint8_t low_order : {0, 1}) {
    Handshake caller(Handshake::End::caller, the_key(), "meeting");
    EXPECT_FALSE(caller.agree(PublicKey{low_order}));
  }
}

TEST(ControlSession, WithoutAKeyFramesGoAsTheyAre) {
  auto [caller, host] = two_sessions(JobKey());
  EXPECT_FALSE(caller.seals());
  EXPECT_FALSE(host.seals());
}

}  // namespace
}  // namespace tessera::comm::control
