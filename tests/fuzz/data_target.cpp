// The greeting of connections for data, their frames, and contacts.
#include "fuzz/data_target.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "base/error.h"
#include "comm/nodes/tcp/greeting.h"
#include "comm/nodes/tcp/meeting.h"

namespace tessera::fuzz {
namespace {

using namespace comm;

Meeting& called_rank() {
  static Meeting meeting({.rank = 1, .size = 2, .local_size = 1}, Protection::authenticated);
  return meeting;
}

// One look at the port: no connection of rank 0 may have come, because no bytes contain the secret.
void look_at_port() {
  const Meeting::Peer zero{0, called_rank().contact(), "rank 0"};
  try {
    (void)called_rank().connect(1, {zero}, std::chrono::milliseconds(0), [] {});
  } catch (const Error&) {
    return;
  }
  __builtin_trap();
}

void call_a_rank(std::string_view bytes) {
  const FileDescriptor caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(called_rank().contact().port));
  // The port of the caller is free again at once.
  const linger at_once{1, 0};
  (void)setsockopt(caller.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  if (::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return;
  }
  const std::size_t half = bytes.size() / 2;
  for (const std::string_view piece : {bytes.substr(0, half), bytes.substr(half)}) {
    if (!piece.empty()) (void)::send(caller.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    look_at_port();
  }
}

// A hello, an answer and a confirmation with the bytes in place of what was sent.
void change_greeting(std::string_view bytes) {
  const Contact::Secret secret{1, 2, 3};
  const DataHello hello = make_hello(1, 0, 1, secret);
  const DataAnswer answer = make_answer(hello, secret);
  DataHello other_hello = hello;
  std::memcpy(&other_hello, bytes.data(), std::min(bytes.size(), sizeof(other_hello)));
  DataAnswer other_answer = answer;
  std::memcpy(&other_answer, bytes.data(), std::min(bytes.size(), sizeof(other_answer)));
  Mac confirmation = make_confirmation(hello, answer, secret);
  std::memcpy(confirmation.data(), bytes.data(), std::min(bytes.size(), confirmation.size()));
  const bool same_hello = std::memcmp(&other_hello, &hello, sizeof(hello)) == 0;
  const bool same_answer = std::memcmp(&other_answer, &answer, sizeof(answer)) == 0;
  const bool same_end = confirmation == make_confirmation(hello, answer, secret);
  if (is_genuine(other_hello, secret) != same_hello) __builtin_trap();
  if (is_genuine(other_answer, hello, secret) != same_answer) __builtin_trap();
  if (is_genuine(confirmation, hello, answer, secret) != same_end) __builtin_trap();
}

// A frame with these bytes opens as it was sealed, and not with one bit of it changed.
void change_frame(std::string_view bytes) {
  if (bytes.size() < 3 || bytes.size() > FrameCipher::most_bytes) return;
  const auto choice = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  FrameKeys keys;
  keys.protection = (choice(2) & 1) != 0 ? Protection::encrypted : Protection::authenticated;
  keys.aes = has_aes() && (choice(2) & 2) != 0;
  FrameCipher sealing(keys, keys.sending), opening(keys, keys.sending);
  const std::string sent(bytes);
  std::string sealed(bytes.size(), '\0');
  FrameCipher::Tag tag{};
  sealing.seal(reinterpret_cast<const std::byte*>(sent.data()), sent.size(),
               reinterpret_cast<std::byte*>(sealed.data()), tag);
  const std::string whole = sealing.encrypts() ? sealed : sent;
  std::string changed = whole;
  FrameCipher::Tag changed_tag = tag;
  const std::size_t place = (choice(0) << 8 | choice(1)) % (changed.size() + tag.size());
  const auto bit = static_cast<unsigned char>(1U << (choice(2) >> 2 & 7));
  auto* at = place < changed.size()
                 ? reinterpret_cast<unsigned char*>(changed.data()) + place
                 : reinterpret_cast<unsigned char*>(changed_tag.data()) + place - changed.size();
  *at ^= bit;
  auto* memory = reinterpret_cast<std::byte*>(changed.data());
  if (opening.open(memory, changed.size(), changed_tag)) __builtin_trap();
  std::string arrived = whole;
  if (!opening.open(reinterpret_cast<std::byte*>(arrived.data()), arrived.size(), tag) ||
      arrived != sent) {
    __builtin_trap();
  }
}

}  // namespace

void run_data(std::string_view bytes) {
  call_a_rank(bytes);
  change_greeting(bytes);
  change_frame(bytes);
  const std::string again = encode(decode_contact(bytes));
  if (encode(decode_contact(again)) != again) __builtin_trap();
}

}  // namespace tessera::fuzz
