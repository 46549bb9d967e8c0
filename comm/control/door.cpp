// Both sides of a connection's first four frames.
#include "comm/control/door.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "base/version.h"

namespace tessera::comm::control {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t protocol_version = 3;
constexpr std::uint64_t most_bytes_of_a_stranger = 2048;
constexpr std::string_view host_label = "tessera control plane, host";
constexpr std::string_view caller_label = "tessera control plane, caller";

// The first two fields never change, so that any two versions can tell each other apart.
struct Knock {
  std::uint32_t protocol = protocol_version;
  std::uint32_t has_key = 0;
  std::uint64_t meeting = 0;
  Nonce nonce{};
};
struct ChallengeOfHost {
  std::uint32_t protocol = protocol_version;
  std::uint32_t has_key = 0;
  Nonce nonce{};
  Proof proof{};
};

std::string_view text_of(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Receives only the bytes of the frame: the bytes after it belong to another reader.
void receive_before(int socket, char* to, std::size_t bytes,
                    std::chrono::steady_clock::time_point deadline) {
  while (bytes > 0) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted{socket, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) == 0) {
      throw NotOurHub(ErrorCode::rank_failed, "the process there does not answer");
    }
    const ssize_t count = recv(socket, to, bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (count <= 0) {
      throw NotOurHub(ErrorCode::rank_failed, "the process there closed the connection");
    }
    to += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

Frame await_frame(int socket, std::chrono::steady_clock::time_point deadline) {
  Frame frame;
  receive_before(socket, reinterpret_cast<char*>(&frame.header), sizeof(frame.header), deadline);
  if (frame.header.magic != FrameHeader::magic_number ||
      frame.header.bytes > most_bytes_of_a_stranger) {
    throw NotOurHub(ErrorCode::rank_failed, "another program listens there");
  }
  frame.payload.resize(frame.header.bytes);
  receive_before(socket, frame.payload.data(), frame.payload.size(), deadline);
  return frame;
}

void send_to_host(int socket, FrameKind kind, std::string_view payload) {
  try {
    send_frame(socket, {.kind = kind}, payload);
  } catch (const Error& error) {
    throw NotOurHub(error.code(), error.what());
  }
}

void check_challenge(const Meeting& meeting, const Knock& knock, const ChallengeOfHost& challenge) {
  if (meeting.key.given()) {
    if (challenge.has_key != 0 &&
        meeting.key.holds(challenge.proof,
                          {host_label, text_of(knock.nonce), text_of(challenge.nonce)})) {
      return;
    }
    throw NotOurHub(
        ErrorCode::configuration,
        fmt::format("the process there does not know this job's key ({}): give all "
                    "hosts the same {}",
                    challenge.has_key != 0 ? "it has another" : "it has none", job_key_variable));
  }
  TESSERA_CHECK(challenge.has_key == 0, ErrorCode::configuration,
                "rank 0 requires the job's key, and this rank has none: give all hosts the same {} "
                "or {}",
                job_key_variable, job_key_file_variable);
}

}  // namespace

Meeting meeting_of(std::string_view purpose, std::string_view name, JobKey key) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a: identifies, does not authenticate
  for (const std::string_view part : {purpose, std::string_view("\0", 1), name}) {
    for (const char character : part) {
      hash = (hash ^ static_cast<unsigned char>(character)) * 1099511628211u;
    }
  }
  return {hash, std::move(key)};
}

std::string introduce(int socket, const Meeting& meeting, std::string_view introduction,
                      milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const Knock knock{
      .has_key = meeting.key.given() ? 1U : 0U, .meeting = meeting.id, .nonce = make_nonce()};
  send_to_host(socket, FrameKind::knock, bytes_of(knock));
  Frame frame = await_frame(socket, deadline);
  if (frame.header.kind == FrameKind::refusal && meeting.key.given()) {
    throw NotOurHub(ErrorCode::configuration, frame.payload);  // the sender has not proven itself
  }
  TESSERA_CHECK(frame.header.kind != FrameKind::refusal, ErrorCode::configuration, "{}",
                frame.payload);
  if (frame.header.kind != FrameKind::challenge ||
      frame.payload.size() != sizeof(ChallengeOfHost)) {
    throw NotOurHub(ErrorCode::rank_failed, "the process there uses another protocol");
  }
  ChallengeOfHost challenge;
  std::memcpy(&challenge, frame.payload.data(), sizeof(challenge));
  check_challenge(meeting, knock, challenge);
  Writer hello;
  hello.number(meeting.key.prove(
      {caller_label, text_of(knock.nonce), text_of(challenge.nonce), introduction}));
  hello.raw(introduction);
  send_to_host(socket, FrameKind::hello, hello.bytes());
  frame = await_frame(socket, deadline);
  TESSERA_CHECK(frame.header.kind == FrameKind::hello, ErrorCode::configuration, "{}",
                frame.payload);
  return std::move(frame.payload);
}

Door::Door(FileDescriptor listener, Meeting meeting, std::string host, Options options)
    : listener_(std::move(listener)),
      meeting_(std::move(meeting)),
      host_(std::move(host)),
      options_(std::move(options)) {
  if (listener_.get() >= 0) set_blocking(listener_.get(), false);
}

void Door::add_to(std::vector<pollfd>& watched) const {
  if (strangers_.size() < options_.strangers) watched.push_back({listener_.get(), POLLIN, 0});
  for (const Stranger& one : strangers_) watched.push_back({one.stream.socket(), POLLIN, 0});
}

std::vector<Door::Caller> Door::serve() {
  accept_all();
  std::vector<Caller> callers;
  std::erase_if(strangers_, [&](Stranger& stranger) { return drops(stranger, callers); });
  return callers;
}

void Door::accept_all() {
  while (listener_.get() >= 0 && strangers_.size() < options_.strangers) {
    FileDescriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) return;
    prepare_connection(connection.get(), options_.patience);
    take(std::move(connection));
  }
}

void Door::take(FileDescriptor connection) {
  Stranger& stranger = strangers_.emplace_back();
  stranger.address = address_of_peer(connection.get());
  stranger.stream = FrameStream(std::move(connection), most_bytes_of_a_stranger);
  stranger.deadline = Clock::now() + options_.patience;
  stranger.ours = make_nonce();
}

bool Door::drops(Stranger& stranger, std::vector<Caller>& callers) {
  try {
    (void)stranger.stream.receive();
    while (const std::optional<Frame> frame = stranger.stream.next()) {
      const bool done =
          stranger.knocked ? take_hello(stranger, *frame, callers) : take_knock(stranger, *frame);
      if (done) return true;
    }
  } catch (const Error& error) {
    return report(stranger, error.what());
  }
  if (stranger.stream.ended()) {
    // A connection that only tests the port is not worth a line.
    return stranger.knocked && meeting_.key.given()
               ? report(stranger, "it closed the connection when the job's key was required")
               : true;
  }
  if (Clock::now() < stranger.deadline) return false;
  return report(stranger, fmt::format("it did not identify itself within {} s",
                                      std::chrono::duration<double>(options_.patience).count()));
}

bool Door::take_knock(Stranger& stranger, const Frame& frame) {
  Reader reader(frame.payload);
  if (frame.header.kind != FrameKind::knock) return report(stranger, "it sent no handshake");
  const auto protocol = reader.number<std::uint32_t>();
  if (protocol != protocol_version) {
    stranger.stream.send({.kind = FrameKind::refusal},
                         fmt::format("rank 0 runs Tessera {}, and this rank another version: use "
                                     "the same on all hosts",
                                     version()));
    return report(stranger, fmt::format("it uses version {} of the protocol, and this is {}",
                                        protocol, protocol_version));
  }
  if (frame.payload.size() != sizeof(Knock)) return report(stranger, "it sent no handshake");
  Knock knock;
  std::memcpy(&knock, frame.payload.data(), sizeof(knock));
  if (knock.meeting != meeting_.id) return true;  // a caller of another job
  stranger.knocked = true;
  stranger.its = knock.nonce;
  const ChallengeOfHost challenge{
      .has_key = meeting_.key.given() ? 1U : 0U,
      .nonce = stranger.ours,
      .proof = meeting_.key.prove({host_label, text_of(stranger.its), text_of(stranger.ours)})};
  stranger.stream.send({.kind = FrameKind::challenge}, bytes_of(challenge));
  return false;
}

bool Door::take_hello(Stranger& stranger, const Frame& frame, std::vector<Caller>& callers) {
  if (frame.header.kind != FrameKind::hello || frame.payload.size() < sizeof(Proof)) {
    return report(stranger, "it did not identify itself");
  }
  Reader reader(frame.payload);
  const auto proof = reader.number<Proof>();
  if (!meeting_.key.holds(
          proof, {caller_label, text_of(stranger.its), text_of(stranger.ours), reader.rest()})) {
    return report(stranger, "it does not know the job's key");
  }
  std::string introduction(reader.rest());
  callers.push_back({stranger.stream.release(), std::move(introduction)});
  return true;
}

bool Door::report(const Stranger& stranger, std::string_view what) {
  if (std::exchange(reported_, true)) return true;
  const std::string line =
      fmt::format("{} turned a connection from {} away: {} (reported once; the job continues)",
                  host_, stranger.address, what);
  if (options_.report) {
    options_.report(line);
  } else {
    print_err("tessera: {}\n", line);
  }
  return true;
}

void Door::answer(const Caller& caller, std::string_view introduction) {
  send_frame(caller.connection.get(), {.kind = FrameKind::hello}, introduction);
}

void Door::refuse(const Caller& caller, std::string_view reason) {
  send_frame(caller.connection.get(), {.kind = FrameKind::refusal}, reason);
}

}  // namespace tessera::comm::control
