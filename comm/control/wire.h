// Frames over a TCP connection: the messages between ranks of a job that spans nodes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/file_descriptor.h"

namespace tessera::comm::control {

enum class FrameKind : std::uint32_t {
  hello,      // identifies the sender; the door answers with its host's identity
  welcome,    // all have come
  refusal,    // the caller does not belong here; the payload has the reason
  group,      // a rank will post in this group; the payload lists its members
  post,       // a rank's part of a round
  answer,     // all parts of a round
  failure,    // the job has failed; the payload describes it
  leave,      // a rank ends normally
  beat,       // heartbeat; a rank also reports whether it moves
  knock,      // the first of a connection: the meeting that the caller looks for
  challenge,  // the door's answer
  misled,     // a refusal: another program has passed the connection on to another port
};

struct FrameHeader {
  static constexpr std::uint32_t magic_number = 0x74737261;  // "arst" in memory
  std::uint32_t magic = magic_number;
  FrameKind kind = FrameKind::hello;
  std::uint64_t group = 0;
  std::uint64_t round = 0;
  std::uint64_t bytes = 0;  // of the payload that follows
};

struct Frame {
  FrameHeader header;
  std::string payload;
};

// The other end has taken or sent no bytes for the connection's timeout, in the middle of a frame.
class Stalled : public Error {
  using Error::Error;
};

// A larger payload is not one of this protocol.
inline constexpr std::uint64_t max_frame_bytes = std::uint64_t{1} << 30;

// Both throw Error(rank_failed) when the connection breaks; receive_frame returns no frame when the
// other end has closed it between two frames, or when no byte arrived within the socket's receive
// timeout. Frames are sealed by the session, if there is one (session.h).
class Session;
void send_frame(int socket, FrameHeader header, std::string_view payload,
                Session* session = nullptr);
std::optional<Frame> receive_frame(int socket, Session* session = nullptr);

// A listening socket on all addresses of this node, or on its loopback alone. Port 0 selects a free
// one. Without a value the port is in use.
std::optional<FileDescriptor> listen_on(int port, bool loopback = false);
int port_of(int socket);
// The port of the other end.
int port_of_peer(int socket);
// The address of the other end, such as "10.0.0.7".
std::string address_of_peer(int socket);
// The name server for a host name does not answer: the name may resolve later.
class NoNameServer : public Error {
  using Error::Error;
};
// Throws Error(configuration) when `host` has no address, NoNameServer when the lookup is not
// answered.
void require_address(const std::string& host);

// Without a value no process listens there (yet), or none answers within `patience`. Throws as
// require_address() does.
std::optional<FileDescriptor> connect_to(
    const std::string& host, int port,
    std::chrono::milliseconds patience = std::chrono::milliseconds(5000));
bool is_loopback(const std::string& host);
// Prepares a connection of the control plane: its frames have priority over other traffic of the
// node, and the kernel closes it when nothing is acknowledged for `silence`.
void prepare_connection(int socket, std::chrono::milliseconds silence);
void set_blocking(int socket, bool blocking);
// Zero: no timeout.
void set_receive_timeout(int socket, std::chrono::milliseconds timeout);
void set_send_timeout(int socket, std::chrono::milliseconds timeout);

// Numbers and texts in a payload.
class Writer {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(std::string_view value) {
    number<std::uint64_t>(value.size());
    bytes_ += value;
  }
  void raw(std::string_view value) { bytes_ += value; }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Throws Error(rank_failed) when the payload ends too early.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::string_view part = take(sizeof(T));
    T value;
    __builtin_memcpy(&value, part.data(), sizeof(T));
    return value;
  }
  std::string_view text() { return take(number<std::uint64_t>()); }
  std::string_view take(std::uint64_t bytes);
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace tessera::comm::control
