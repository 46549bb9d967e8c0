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

constexpr std::uint32_t protocol_version = 4;
constexpr std::uint64_t most_bytes_of_a_stranger = 2048;
constexpr std::string_view caller_label = "tessera control plane, caller";

std::string_view label_of_host(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello:
      return "tessera control plane, host";
    case FrameKind::refusal:
      return "tessera control plane, host refuses";
    default:
      return "tessera control plane, host names a relay";
  }
}

// The first two fields never change, so that any two versions can tell each other apart.
struct Knock {
  std::uint32_t protocol = protocol_version;
  std::uint32_t has_key = 0;
  std::uint64_t meeting = 0;
  PublicKey public_key{};
};
struct ChallengeOfHost {
  std::uint32_t protocol = protocol_version;
  std::uint32_t has_key = 0;
  PublicKey public_key{};
};

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

[[noreturn]] void not_ours(std::string_view what) {
  throw NotOurHub(ErrorCode::configuration,
                  fmt::format("the process there does not know this job's key ({}): give all hosts "
                              "the same {}",
                              what, job_key_variable));
}

// A caller with a key takes no host without one, and the reverse.
void check_challenge(const Meeting& meeting, const ChallengeOfHost& challenge) {
  if (meeting.key.given() && challenge.has_key == 0) not_ours("it has none");
  TESSERA_CHECK(meeting.key.given() || challenge.has_key == 0, ErrorCode::configuration,
                "rank 0 requires the job's key, and this rank has none: give all hosts the same {} "
                "or {}",
                job_key_variable, job_key_file_variable);
}

// A message of one who proves itself: the proof, then what it covers.
std::string proven(const Handshake& handshake, std::string_view label, std::string_view said) {
  Writer message;
  message.number(handshake.prove(label, said));
  message.raw(said);
  return message.bytes();
}

// The host's last message. Only a caller that has proven itself gets one with a proof.
void send_last(const Door::Caller& caller, FrameKind kind, std::string_view text) {
  Writer said;
  said.number(caller.handshake.stream_header());
  said.raw(text);
  send_frame(caller.connection.get(), {.kind = kind},
             proven(caller.handshake, label_of_host(kind), said.bytes()));
}

Admission take_last(const Frame& frame, Handshake& handshake) {
  if (frame.payload.size() < sizeof(Proof) + sizeof(StreamHeader)) {
    throw NotOurHub(ErrorCode::rank_failed, "the process there uses another protocol");
  }
  Reader reader(frame.payload);
  const auto proof = reader.number<Proof>();
  const std::string_view said = reader.rest();
  const bool holds = handshake.holds(proof, label_of_host(frame.header.kind), said);
  const auto stream_header = reader.number<StreamHeader>();
  std::string text(reader.rest());
  // A host that this end has not convinced gives no reason.
  if (!holds || (frame.header.kind == FrameKind::refusal && text.empty())) {
    not_ours("it has another");
  }
  if (frame.header.kind == FrameKind::misled) throw NotOurHub(ErrorCode::configuration, text);
  TESSERA_CHECK(frame.header.kind == FrameKind::hello, ErrorCode::configuration, "{}", text);
  return {std::move(text), handshake.session(stream_header)};
}

}  // namespace

Meeting meeting_of(std::string_view purpose, std::string_view name, JobKey key) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a: identifies, does not authenticate
  std::string whole(purpose);
  (whole += '\0') += name;
  for (const char character : whole) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 1099511628211u;
  }
  return {hash, std::move(whole), std::move(key)};
}

Admission introduce(int socket, const Meeting& meeting, std::string_view introduction,
                    milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  Handshake handshake(Handshake::End::caller, meeting.key, meeting.name);
  const Knock knock{.has_key = meeting.key.given() ? 1U : 0U,
                    .meeting = meeting.id,
                    .public_key = handshake.public_key()};
  handshake.add(bytes_of(knock));
  send_to_host(socket, FrameKind::knock, bytes_of(knock));
  const Frame frame = await_frame(socket, deadline);
  if (frame.header.kind == FrameKind::refusal && meeting.key.given()) {
    throw NotOurHub(ErrorCode::configuration, frame.payload);  // the sender has not proven itself
  }
  TESSERA_CHECK(frame.header.kind != FrameKind::refusal, ErrorCode::configuration, "{}",
                frame.payload);
  ChallengeOfHost challenge;
  if (frame.header.kind != FrameKind::challenge || frame.payload.size() != sizeof(challenge)) {
    throw NotOurHub(ErrorCode::rank_failed, "the process there uses another protocol");
  }
  std::memcpy(&challenge, frame.payload.data(), sizeof(challenge));
  check_challenge(meeting, challenge);
  handshake.add(frame.payload);
  if (!handshake.agree(challenge.public_key)) {
    throw NotOurHub(ErrorCode::rank_failed, "the process there uses another protocol");
  }
  Writer said;
  said.number(static_cast<std::uint32_t>(port_of_peer(socket)));
  said.number(handshake.stream_header());
  said.raw(introduction);
  const std::string hello = proven(handshake, caller_label, said.bytes());
  handshake.add(hello);
  send_to_host(socket, FrameKind::hello, hello);
  return take_last(await_frame(socket, deadline), handshake);
}

Door::Door(FileDescriptor listener, Meeting meeting, std::string host, Options options)
    : listener_(std::move(listener)),
      meeting_(std::move(meeting)),
      host_(std::move(host)),
      options_(std::move(options)) {
  if (listener_.get() >= 0) set_blocking(listener_.get(), false);
}

void Door::add_to(std::vector<pollfd>& watched) const {
  if (pause_.over()) watched.push_back({listener_.get(), POLLIN, 0});
  for (const Stranger& one : strangers_) watched.push_back({one.stream.socket(), POLLIN, 0});
}

std::vector<Door::Caller> Door::serve() {
  std::vector<Caller> callers;
  std::erase_if(strangers_, [&](Stranger& stranger) { return drops(stranger, callers); });
  accept_all(callers);
  return callers;
}

void Door::accept_all(std::vector<Caller>& callers) {
  if (listener_.get() < 0 || !pause_.over()) return;
  const auto look = [&](Stranger& stranger) { return look_at(stranger, callers); };
  for (int i = 0; i < CrowdLimits::accepted_a_turn; ++i) {
    FileDescriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) {
      if (pause_.makes_room(errno, strangers_, look)) continue;
      return;
    }
    prepare_connection(connection.get(), options_.patience);
    make_room(strangers_, options_.strangers, address_of_peer(connection.get()), look);
    take(std::move(connection));
    // Its first message has usually arrived: those that have spoken are kept longest.
    if (drops(strangers_.back(), callers)) strangers_.pop_back();
  }
}

Standing Door::look_at(Stranger& stranger, std::vector<Caller>& callers) {
  if (!stranger.handshake && drops(stranger, callers)) return Standing::gone;
  if (stranger.handshake) return Standing::has_spoken;
  report(stranger, "it said nothing while many connections waited");
  return Standing::silent;
}

void Door::take(FileDescriptor connection) {
  Stranger& stranger = strangers_.emplace_back();
  stranger.address = address_of_peer(connection.get());
  stranger.stream = FrameStream(std::move(connection), {}, most_bytes_of_a_stranger);
  stranger.since = Clock::now();
}

bool Door::drops(Stranger& stranger, std::vector<Caller>& callers) {
  try {
    (void)stranger.stream.receive();
    while (const std::optional<Frame> frame = stranger.stream.next()) {
      const bool done =
          stranger.handshake ? take_hello(stranger, *frame, callers) : take_knock(stranger, *frame);
      if (done) return true;
    }
  } catch (const Error& error) {
    return report(stranger, error.what());
  }
  if (stranger.stream.ended()) {
    // A connection that only tests the port is not worth a line.
    return stranger.handshake && meeting_.key.given()
               ? report(stranger, "it closed the connection when the job's key was required")
               : true;
  }
  const milliseconds patience = options_.strangers.patience(strangers_.size(), options_.patience);
  if (Clock::now() - stranger.since < patience) return false;
  return report(stranger, fmt::format("it did not identify itself within {} s",
                                      std::chrono::duration<double>(patience).count()));
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
  Handshake& handshake =
      stranger.handshake.emplace(Handshake::End::host, meeting_.key, meeting_.name);
  stranger.public_key = knock.public_key;
  const ChallengeOfHost challenge{.has_key = meeting_.key.given() ? 1U : 0U,
                                  .public_key = handshake.public_key()};
  handshake.add(frame.payload);
  handshake.add(bytes_of(challenge));
  stranger.stream.send({.kind = FrameKind::challenge}, bytes_of(challenge));
  return false;
}

bool Door::take_hello(Stranger& stranger, const Frame& frame, std::vector<Caller>& callers) {
  if (frame.header.kind != FrameKind::hello || frame.payload.size() < sizeof(Proof)) {
    return report(stranger, "it did not identify itself");
  }
  Reader reader(frame.payload);
  const auto proof = reader.number<Proof>();
  Handshake& handshake = *stranger.handshake;
  if (!handshake.holds(proof, caller_label, reader.rest())) {
    // Without a proof, which would depend on the key.
    const std::string nothing(sizeof(Proof) + sizeof(StreamHeader), '\0');
    stranger.stream.send({.kind = FrameKind::refusal}, nothing);
    return report(stranger, "it does not know the job's key");
  }
  const auto called = static_cast<int>(reader.number<std::uint32_t>());
  const auto stream_header = reader.number<StreamHeader>();
  if (!handshake.agree(stranger.public_key)) return report(stranger, "it sent no handshake");
  handshake.add(frame.payload);
  Caller caller{stranger.stream.release(), std::string(reader.rest()), std::move(handshake),
                stream_header};
  const int arrived = port_of(caller.connection.get());
  if (meeting_.key.given() && called != arrived) {
    const std::string what = fmt::format(
        "a connection was made to port {} and arrived at port {}: another program passes "
        "connections on",
        called, arrived);
    send_last(caller, FrameKind::misled, what);
    return report(stranger, what);
  }
  callers.push_back(std::move(caller));
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

Session Door::answer(Caller& caller, std::string_view introduction) {
  send_last(caller, FrameKind::hello, introduction);
  return caller.handshake.session(caller.stream_header);
}

void Door::refuse(const Caller& caller, std::string_view reason) {
  send_last(caller, FrameKind::refusal, reason);
}

}  // namespace tessera::comm::control
