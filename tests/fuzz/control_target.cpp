// The door, the frames, in clear and sealed, and their payloads.
#include "fuzz/control_target.h"

#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/control/door.h"
#include "comm/control/payloads.h"
#include "comm/control/session.h"

namespace tessera::fuzz {
namespace {

using namespace comm::control;

Door& locked_door() {
  static Door door(comm::FileDescriptor(),
                   meeting_of("ranks", "fuzz", JobKey::from_text("a-key-unknown-here", "here")),
                   "the door", {.report = [](const std::string&) {}});
  return door;
}

void call_at_door(std::string_view bytes) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
  comm::FileDescriptor caller(ends[0]);
  Door& door = locked_door();
  door.take(comm::FileDescriptor(ends[1]));
  // In two pieces, followed by the end of the connection.
  const std::size_t half = bytes.size() / 2;
  for (const std::string_view piece : {bytes.substr(0, half), bytes.substr(half)}) {
    if (!piece.empty()) (void)::send(caller.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (!door.serve().empty()) __builtin_trap();  // the bytes cannot contain the key
  }
  caller.reset();
  for (int turn = 0; turn < 4 && door.strangers() > 0; ++turn) {
    if (!door.serve().empty()) __builtin_trap();
  }
  if (door.strangers() != 0) __builtin_trap();  // a closed connection must be forgotten
}

void decode(const Frame& frame) {
  KnownNames names;
  SentNames sent;
  switch (frame.header.kind) {
    case FrameKind::hello:
      (void)name_of(decode_introduction(frame.payload));
      return;
    case FrameKind::group: {
      const GroupOfRanks group = decode_group(frame.payload);
      if (decode_group(encode(group)).members != group.members) __builtin_trap();
      return;
    }
    case FrameKind::post: {
      const Post post = decode_post(frame.payload, names);
      if (decode_post(encode(post, sent), names).message != post.message) __builtin_trap();
      return;
    }
    case FrameKind::beat: {
      const BeatOfRank beat = decode_beat(frame.payload);
      if (decode_beat(encode(beat)).wait != beat.wait) __builtin_trap();
      return;
    }
    default:
      return;
  }
}

void take_apart(std::string_view bytes) {
  constexpr std::uint64_t most = 1 << 20;
  FrameAssembler assembler(most);
  std::string said;
  for (std::size_t at = 0; at < bytes.size();) {
    // Pieces of many lengths, which depend on their content.
    const std::size_t piece =
        std::min<std::size_t>(1 + static_cast<unsigned char>(bytes[at]) * 7U, bytes.size() - at);
    assembler.add(bytes.substr(at, piece));
    at += piece;
    while (const auto frame = assembler.next()) {
      if (frame->payload.size() != frame->header.bytes) __builtin_trap();
      said += std::string(reinterpret_cast<const char*>(&frame->header), sizeof frame->header) +
              frame->payload;
      try {
        decode(*frame);
      } catch (const Error&) {
      }
    }
    if (bytes.substr(0, said.size()) != said) __builtin_trap();  // no byte is lost or invented
  }
}

std::pair<Session, Session> sealed_connection() {
  static const JobKey key = JobKey::from_text("a-key-of-both-ends", "here");
  Handshake caller(Handshake::End::caller, key, "fuzz"), host(Handshake::End::host, key, "fuzz");
  if (!caller.agree(host.public_key()) || !host.agree(caller.public_key())) __builtin_trap();
  const StreamHeader of_caller = caller.stream_header();
  return {caller.session(host.stream_header()), host.session(of_caller)};
}

// The number of whole frames, which must be the first of `sent`, before an error or the end.
std::size_t frames_in(const std::string& wire, Session& session,
                      const std::vector<std::string_view>& sent) {
  FrameAssembler assembler(1 << 20);
  std::size_t frames = 0;
  try {
    for (std::size_t at = 0; at < wire.size(); at += 50) {
      assembler.add(std::string_view(wire).substr(at, 50));
      while (const auto frame = assembler.next(session)) {
        if (frames == sent.size() || frame->payload != sent[frames]) __builtin_trap();
        ++frames;
      }
    }
  } catch (const Error&) {
  }
  return frames;
}

// Sealed frames of which one byte changes, or the end is missing. The first bytes choose.
void change_sealed(std::string_view bytes) {
  auto [caller, host] = sealed_connection();
  if (frames_in(std::string(bytes), host, {}) != 0) __builtin_trap();
  if (bytes.size() < 4) return;
  const auto choice = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  const std::size_t third = bytes.size() / 3;
  const std::vector<std::string_view> sent = {bytes.substr(0, third), bytes.substr(third, third),
                                              bytes.substr(2 * third)};
  auto [from, to] = sealed_connection();
  std::string wire;
  std::vector<std::size_t> ends;
  for (const std::string_view payload : sent) {
    wire += from.seal({.kind = FrameKind::post, .bytes = payload.size()}, payload);
    ends.push_back(wire.size());
  }
  const std::size_t place = (choice(0) << 8 | choice(1)) % wire.size();
  const bool changes = choice(2) != 0, cuts = (choice(3) & 1) != 0;
  wire[place] = static_cast<char>(wire[place] ^ choice(2));
  if (cuts) wire.resize(place);
  const auto before = std::upper_bound(ends.begin(), ends.end(), place) - ends.begin();
  const std::size_t expected = changes || cuts ? static_cast<std::size_t>(before) : sent.size();
  if (frames_in(wire, to, sent) != expected) __builtin_trap();
}

}  // namespace

void run_control(std::string_view bytes) {
  call_at_door(bytes);
  change_sealed(bytes);
  take_apart(bytes);
}

}  // namespace tessera::fuzz
