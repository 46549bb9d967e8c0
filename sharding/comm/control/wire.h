// Frames over a TCP connection: what the ranks of a job that spans hosts tell each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "sharding/comm/file_descriptor.h"

namespace tessera::comm::control {

enum class FrameKind : std::uint32_t {
  hello,    // a rank says who it is; the hub says that it has heard
  welcome,  // it belongs to this job
  refusal,  // it does not; the payload says why
  group,    // a rank will post in this group; the payload says who is in it
  post,     // a rank's part of a round
  answer,   // all parts of a round
  failure,  // the job has failed; the payload says how
  leave,    // a rank ends in good order
  beat,     // the sender lives; a rank says as well whether it moves
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

// The other end has taken nothing for the connection's send time-out.
class Stalled : public Error {
  using Error::Error;
};

// Larger payloads are no frames of ours.
inline constexpr std::uint64_t max_frame_bytes = std::uint64_t{1} << 30;

// Both throw Error(rank_failed) when the connection breaks; receive_frame gives nothing when the
// other end has closed it between two frames, or when nothing arrived within the socket's receive
// time-out.
void send_frame(int socket, FrameHeader header, std::string_view payload);
std::optional<Frame> receive_frame(int socket);

// A listening socket on all addresses of this host. Port 0 takes a free one. Without a value the
// port is taken.
std::optional<FileDescriptor> listen_on(int port);
int port_of(int socket);
// Without a value nobody listens there (yet). Throws Error(configuration) when `host` has no
// address.
std::optional<FileDescriptor> connect_to(const std::string& host, int port);
// Zero: none.
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

 private:
  std::string_view rest_;
};

}  // namespace tessera::comm::control
