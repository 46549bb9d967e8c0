// Encoding of the rendezvous' messages.
#include "comm/shared/join/handshake.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/version.h"

namespace tessera::comm {
namespace {

constexpr std::size_t refusal_bytes = 2048;
constexpr std::size_t max_handles = 253;  // the kernel's limit for one message

struct AnswerHeader {
  std::uint64_t magic = Hello::magic_number;
  std::int32_t error_code = 0;
  std::uint32_t text_bytes = 0;
};

std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 1099511628211u;
  }
  return hash;
}

}  // namespace

Hello hello_of(const World& world) {
  Hello hello;
  std::strncpy(hello.library, version(), sizeof(hello.library) - 1);
  hello.rank = world.rank;
  hello.size = world.size;
  hello.local_size = world.local_size;
  return hello;
}

MeetingAddress meeting_address(const World& world) {
  // The readable part helps a user of `ss -x`; the fingerprint covers parts of any length.
  const std::string name = fmt::format("tessera.{}.{}.{:016x}", getuid(), world.master_port,
                                       fingerprint(fmt::format("{}\n{}\n{}", world.master_address,
                                                               world.master_port, world.run_id)));
  MeetingAddress result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());  // a leading 0 byte: abstract
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

Peer peer_of(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  TESSERA_SYSTEM(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes));
  return {.pid = credentials.pid, .uid = credentials.uid};
}

void send_refusal(int socket, int error_code, std::string_view reason) {
  reason = reason.substr(0, refusal_bytes);
  AnswerHeader header{.error_code = error_code,
                      .text_bytes = static_cast<std::uint32_t>(reason.size())};
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  message += reason;
  send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void send_handles(int socket, const std::vector<int>& handles) {
  TESSERA_REQUIRE(handles.size() <= max_handles, "{} handles in one message", handles.size());
  AnswerHeader header;
  iovec part{.iov_base = &header, .iov_len = sizeof(header)};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(max_handles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(handles.size() * sizeof(int));
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(handles.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), handles.data(), handles.size() * sizeof(int));
  TESSERA_SYSTEM(sendmsg(socket, &message, MSG_NOSIGNAL));
}

Answer receive_answer(int socket) {
  std::array<std::byte, sizeof(AnswerHeader) + refusal_bytes> bytes{};
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(max_handles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received = 0;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);

  Answer answer;
  if (received > 0) {
    for (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr;
         rights = CMSG_NXTHDR(&message, rights)) {
      if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::vector<int> handles(count);
      std::memcpy(handles.data(), CMSG_DATA(rights), count * sizeof(int));
      for (const int handle : handles) answer.handles.emplace_back(handle);
    }
  }
  AnswerHeader header;
  if (received < static_cast<ssize_t>(sizeof(header))) return answer;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto text_bytes = static_cast<std::size_t>(received) - sizeof(header);
  TESSERA_CHECK(header.magic == Hello::magic_number && header.text_bytes == text_bytes &&
                    (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0,
                ErrorCode::rank_failed,
                "rank 0's answer cannot be understood: another program listens in its place, or "
                "this process may "
                "open too few files (ulimit -n)");
  answer.error_code = header.error_code;
  answer.refusal.assign(reinterpret_cast<const char*>(bytes.data()) + sizeof(header), text_bytes);
  return answer;
}

}  // namespace tessera::comm
