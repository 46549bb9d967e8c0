// Data of a connection in frames: all sizes arrive, however the kernel cuts them; a change on the
// way is noticed before a message counts as received; an encrypted message is not on the wire.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "comm/nodes/socket_pairs.h"
#include "comm/nodes/tcp/tcp_transport.h"
#include "tests/support/expect_parts.h"

namespace tessera::comm {
namespace {

using tessera::testing::connected;
using tessera::testing::expect_parts;
using tessera::testing::heard_from;
using namespace std::chrono_literals;

struct Mode {
  Protection protection;
  bool aes;
};

std::vector<Mode> protected_modes() {
  std::vector<Mode> modes;
  for (const Protection protection : {Protection::authenticated, Protection::encrypted}) {
    modes.push_back({protection, false});
    if (has_aes()) modes.push_back({protection, true});
  }
  return modes;
}

FrameKeys keys_of(Mode mode, bool is_caller) {
  FrameKeys keys;
  keys.protection = mode.protection;
  keys.aes = mode.aes;
  keys.sending.fill(is_caller ? 1 : 2);
  keys.receiving.fill(is_caller ? 2 : 1);
  return keys;
}

// Rank 0 is the caller. The peer of each is the other.
TcpTransport end_of(int rank, FileDescriptor connection, Mode mode) {
  std::map<int, TcpTransport::Peer> peers;
  peers[1 - rank] = {std::move(connection), "rank " + std::to_string(1 - rank) + " of node7",
                     keys_of(mode, rank == 0)};
  return TcpTransport(std::move(peers));
}

std::string random_text(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& character : text) character = static_cast<char>(random());
  return text;
}

const std::byte* data_of(const std::string& text) {
  return reinterpret_cast<const std::byte*>(text.data());
}
std::byte* data_of(std::string& text) {
  return reinterpret_cast<std::byte*>(text.data());
}

class DataFrames : public ::testing::TestWithParam<Mode> {};
class ProtectedDataFrames : public DataFrames {};

std::string name_of_mode(const ::testing::TestParamInfo<Mode>& mode) {
  const auto name = mode.param.protection == Protection::none            ? "Plain"
                    : mode.param.protection == Protection::authenticated ? "Authenticated"
                                                                         : "Encrypted";
  return std::string(name) + (mode.param.aes ? "Aes" : "");
}
std::vector<Mode> all_modes() {
  std::vector<Mode> modes = protected_modes();
  modes.push_back({Protection::none, false});
  return modes;
}
INSTANTIATE_TEST_SUITE_P(Modes, DataFrames, ::testing::ValuesIn(all_modes()), name_of_mode);
INSTANTIATE_TEST_SUITE_P(Modes, ProtectedDataFrames, ::testing::ValuesIn(protected_modes()),
                         name_of_mode);

// Sends the messages in both directions at once and compares what arrives.
void expect_to_arrive(Mode mode, int at_once, const std::vector<std::size_t>& sizes) {
  auto [mine, theirs] = connected(at_once);
  TcpTransport zero = end_of(0, std::move(mine), mode), one = end_of(1, std::move(theirs), mode);
  std::vector<std::string> out, in[2];
  std::vector<Transport::Ticket> tickets;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out.push_back(random_text(sizes[i], static_cast<unsigned>(i)));
    for (auto& received : in) received.emplace_back(sizes[i], '\0');
  }
  const std::vector<std::string> sent = out;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    zero.send(1, data_of(out[i]), sizes[i]);
    one.send(0, data_of(out[i]), sizes[i]);
    tickets.push_back(zero.receive(1, data_of(in[0][i]), sizes[i]));
    one.receive(0, data_of(in[1][i]), sizes[i]);
  }
  std::size_t done = 0;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!(zero.idle() && one.idle()) && std::chrono::steady_clock::now() < deadline) {
    (void)zero.move(0ms);
    (void)one.move(0ms);
    for (; done < tickets.size() && zero.received(1, tickets[done]); ++done) {
      EXPECT_TRUE(in[0][done] == sent[done]) << sizes[done];  // when it is reported, it is there
    }
  }
  EXPECT_EQ(done, sizes.size());
  EXPECT_TRUE(zero.idle() && one.idle());
  for (const auto& received : in) EXPECT_TRUE(received == sent);
  EXPECT_TRUE(out == sent);  // sending does not change the memory
}

constexpr std::size_t frame = FrameCipher::most_bytes;

TEST_P(DataFrames, MessagesOfAllSizesArrive) {
  for (const int at_once : {0, 2048}) {
    expect_to_arrive(GetParam(), at_once,
                     {0, 1, 15, 16, 17, frame - 1, 0, 0, frame, frame + 1, 3 * frame, 5 * frame + 7,
                      1'000'001, 0});
  }
}

TEST_P(DataFrames, ManySmallMessagesArrive) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 3000; ++i) sizes.push_back(i % 97);
  for (const int at_once : {0, 2048}) expect_to_arrive(GetParam(), at_once, sizes);
}

TEST_P(DataFrames, AConnectionThatTakesNoMoreBlocksNobody) {
  auto [mine, theirs] = connected();
  TcpTransport zero = end_of(0, std::move(mine), GetParam());
  const std::string message(std::size_t{64} << 20, 'x');
  zero.send(1, data_of(message), message.size());
  const auto begin = std::chrono::steady_clock::now();
  while (zero.move(0ms)) {
  }
  EXPECT_FALSE(zero.idle());
  EXPECT_FALSE(zero.move(20ms));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

// The bytes that rank 0 puts on the wire for these messages.
std::string wire_of(const std::vector<std::string>& messages, Mode mode) {
  auto [mine, theirs] = connected();
  TcpTransport zero = end_of(0, std::move(mine), mode);
  for (const std::string& message : messages) zero.send(1, data_of(message), message.size());
  std::string wire;
  for (int turn = 0; turn < 100'000 && !zero.idle(); ++turn) {
    (void)zero.move(0ms);
    wire += heard_from(theirs);
  }
  EXPECT_TRUE(zero.idle());
  shutdown(theirs.get(), SHUT_WR);
  std::size_t expected = 0;
  for (const std::string& message : messages) {
    expected += message.size() + (message.size() + frame - 1) / frame * FrameCipher::tag_bytes;
  }
  for (int turn = 0; turn < 1000 && wire.size() < expected; ++turn) {
    ::usleep(1000);
    wire += heard_from(theirs);
  }
  EXPECT_EQ(wire.size(), expected);
  return wire;
}

struct Arrived {
  std::size_t messages = 0;
  std::string error;
  std::vector<std::string> memory;
};

// Rank `rank` receives messages of these sizes from the wire. After an error it goes on: no further
// message may count as received.
Arrived receive_from(const std::string& wire, const std::vector<std::size_t>& sizes, Mode mode,
                     int rank = 1) {
  auto [mine, theirs] = connected();
  TcpTransport transport = end_of(rank, std::move(theirs), mode);
  Arrived arrived;
  std::vector<Transport::Ticket> tickets;
  for (const std::size_t size : sizes) arrived.memory.emplace_back(size, '\0');
  for (std::string& memory : arrived.memory) {
    tickets.push_back(transport.receive(1 - rank, data_of(memory), memory.size()));
  }
  control::set_blocking(mine.get(), false);
  std::size_t given = 0;
  bool closed = false;
  int errors = 0;
  for (int turn = 0; turn < 100'000 && !transport.idle() && errors < 3; ++turn) {
    if (given < wire.size()) {
      const ssize_t bytes =
          ::send(mine.get(), wire.data() + given, wire.size() - given, MSG_NOSIGNAL);
      if (bytes > 0) given += static_cast<std::size_t>(bytes);
    } else if (!closed) {
      closed = shutdown(mine.get(), SHUT_WR) == 0;
    }
    try {
      (void)transport.move(1ms);
    } catch (const LinkBroken& broken) {
      EXPECT_EQ(broken.code(), ErrorCode::rank_failed);
      if (errors++ == 0) arrived.error = broken.what();
    }
  }
  while (arrived.messages < tickets.size() &&
         transport.received(1 - rank, tickets[arrived.messages])) {
    ++arrived.messages;
  }
  return arrived;
}

void expect_refused(const Arrived& arrived, std::size_t messages_before) {
  EXPECT_EQ(arrived.messages, messages_before);
  expect_parts(arrived.error, {"the connection to rank", "of node7 broke", "changed, left out or",
                               "between the two hosts"});
}

// Three messages of one frame each.
const std::vector<std::string>& three_messages() {
  static const std::vector<std::string> messages{std::string(100, 'a'), std::string(100, 'b'),
                                                 std::string(100, 'c')};
  return messages;
}
const std::vector<std::size_t> three_sizes{100, 100, 100};
constexpr std::size_t small_frame = 100 + FrameCipher::tag_bytes;

TEST_P(ProtectedDataFrames, AChangedBitIsNoticed) {
  const std::string wire = wire_of(three_messages(), GetParam());
  EXPECT_EQ(receive_from(wire, three_sizes, GetParam()).messages, 3u);
  for (const std::size_t at : {std::size_t{0}, std::size_t{99}, std::size_t{100}, small_frame - 1,
                               small_frame, 2 * small_frame + 50, 3 * small_frame - 1}) {
    std::string changed = wire;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    expect_refused(receive_from(changed, three_sizes, GetParam()), at / small_frame);
  }
}

TEST_P(ProtectedDataFrames, AChangeInALaterFrameOfAMessageIsNoticed) {
  const std::string message = random_text(3 * frame + 5, 1);
  std::string wire = wire_of({message}, GetParam());
  EXPECT_TRUE(receive_from(wire, {message.size()}, GetParam()).memory.front() == message);
  wire[2 * (frame + FrameCipher::tag_bytes) + 7] ^= 1;
  expect_refused(receive_from(wire, {message.size()}, GetParam()), 0);
}

TEST_P(ProtectedDataFrames, LeftOutRepeatedAndSwappedFramesAreNoticed) {
  const std::string wire = wire_of(three_messages(), GetParam());
  const auto frame_at = [&](std::size_t i) { return wire.substr(i * small_frame, small_frame); };
  const std::string a = frame_at(0), b = frame_at(1), c = frame_at(2);
  expect_refused(receive_from(a + c + c, three_sizes, GetParam()), 1);
  expect_refused(receive_from(a + a + b, three_sizes, GetParam()), 1);
  expect_refused(receive_from(b + a + c, three_sizes, GetParam()), 0);
  expect_refused(receive_from(a + c + b, three_sizes, GetParam()), 1);
}

TEST_P(ProtectedDataFrames, DataSentBackToItsSenderIsNoticed) {
  expect_refused(receive_from(wire_of(three_messages(), GetParam()), three_sizes, GetParam(), 0),
                 0);
}

TEST_P(ProtectedDataFrames, AMessageWithoutItsEndIsNotReceived) {
  const std::string wire = wire_of(three_messages(), GetParam());
  const Arrived arrived =
      receive_from(wire.substr(0, 3 * small_frame - 1), three_sizes, GetParam());
  EXPECT_EQ(arrived.messages, 2u);
  expect_parts(arrived.error, {"rank 0 of node7", "closed it"});
}

TEST_P(ProtectedDataFrames, FramesOfAnotherProtectionAreNoticed) {
  const std::string wire = wire_of(three_messages(), GetParam());
  for (const Mode& other : protected_modes()) {
    if (other.protection == GetParam().protection && other.aes == GetParam().aes) continue;
    expect_refused(receive_from(wire, three_sizes, other), 0);
  }
}

// Sixteen bytes of the data at any place.
TEST_P(ProtectedDataFrames, OnlyEncryptionHidesTheData) {
  const std::string message = random_text(2 * frame + 1000, 3);
  const std::string wire = wire_of({message, std::string(5000, 'z')}, GetParam());
  const bool hidden = GetParam().protection == Protection::encrypted;
  for (std::size_t at = 0; at + 16 < message.size(); at += 1009) {
    EXPECT_EQ(wire.find(message.substr(at, 16)) == std::string::npos, hidden) << at;
  }
  EXPECT_EQ(wire.find(std::string(16, 'z')) == std::string::npos, hidden);
}

}  // namespace
}  // namespace tessera::comm
