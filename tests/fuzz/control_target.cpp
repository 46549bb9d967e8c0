// The door, the frames and their payloads.
#include "fuzz/control_target.h"

#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "comm/control/door.h"
#include "comm/control/payloads.h"

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

}  // namespace

void run_control(std::string_view bytes) {
  call_at_door(bytes);
  take_apart(bytes);
}

}  // namespace tessera::fuzz
