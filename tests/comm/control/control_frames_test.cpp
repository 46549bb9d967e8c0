// Frames that arrive in pieces, and bytes that are not frames.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/control/frame_stream.h"

namespace tessera::comm::control {
namespace {

std::string frame_bytes(const FrameHeader& header, const std::string& payload) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

TEST(ControlFrames, AnyCutGivesTheSameFrames) {
  std::mt19937 random(3);
  for (int run = 0; run < 50; ++run) {
    std::string bytes;
    std::vector<std::string> payloads;
    for (std::uint64_t round = 0; round < 20; ++round) {
      payloads.emplace_back(random() % 3000, static_cast<char>(random()));
      bytes +=
          frame_bytes({.kind = FrameKind::post, .round = round, .bytes = payloads.back().size()},
                      payloads.back());
    }
    FrameAssembler assembler;
    std::uint64_t round = 0;
    std::size_t given = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = std::min<std::size_t>(1 + random() % 5000, bytes.size() - at);
      assembler.add(std::string_view(bytes).substr(at, piece));
      at += piece;
      while (const auto frame = assembler.next()) {
        EXPECT_EQ(frame->header.round, round);
        EXPECT_EQ(frame->payload, payloads[round++]);
        given += sizeof(FrameHeader) + frame->payload.size();
      }
      EXPECT_EQ(assembler.in_the_middle(), given < at);
    }
    EXPECT_EQ(round, payloads.size());
  }
}

TEST(ControlFrames, OtherBytesAreRefusedAtTheFirstByte) {
  FrameAssembler assembler;
  assembler.add("G");  // of "GET / HTTP/1.1"
  EXPECT_THROW((void)assembler.next(), Error);
}

TEST(ControlFrames, ATooLongFrameIsRefusedBeforeItArrives) {
  FrameAssembler assembler(100);
  const FrameHeader header{.kind = FrameKind::knock, .bytes = 101};
  assembler.add(frame_bytes(header, ""));
  EXPECT_THROW((void)assembler.next(), Error);
}

// A receiver that does not read neither blocks a sender nor loses data.
TEST(ControlFrames, BytesThatTheSocketDoesNotTakeAreKept) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  FrameStream sender{FileDescriptor(ends[0])};
  FrameStream receiver{FileDescriptor(ends[1])};
  const std::string payload(1 << 16, 'x');
  constexpr std::uint64_t frames = 100;
  for (std::uint64_t round = 0; round < frames; ++round) {
    sender.send({.kind = FrameKind::answer, .round = round}, payload);
  }
  EXPECT_TRUE(sender.has_unsent());
  std::uint64_t round = 0;
  while (round < frames) {
    const bool came = receiver.receive();
    while (const auto frame = receiver.next()) {
      EXPECT_EQ(frame->header.round, round++);
      EXPECT_EQ(frame->payload, payload);
    }
    const bool went = sender.flush();
    ASSERT_TRUE(came || went);
  }
  EXPECT_FALSE(sender.has_unsent());
  sender.close();
  EXPECT_FALSE(receiver.receive());
  EXPECT_TRUE(receiver.ended());
}

}  // namespace
}  // namespace tessera::comm::control
