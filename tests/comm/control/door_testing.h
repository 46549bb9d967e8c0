// A door on a thread of its own, callers, and a program between them that passes connections on.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/control/door.h"
#include "comm/world.h"

namespace tessera::comm::control::doors {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

inline const JobKey& the_key() {
  static const JobKey key = JobKey::from_text("the-key-of-these-tests", "here");
  return key;
}
inline const JobKey& another_key() {
  static const JobKey key = JobKey::from_text("the-key-of-another-job", "here");
  return key;
}

// Admits callers, each of which gets "the host" as answer.
class OpenDoor {
 public:
  explicit OpenDoor(const JobKey& key, CrowdLimits strangers = {},
                    std::chrono::milliseconds patience = 6s)
      : listener_(*listen_on(0, true)),
        port_(port_of(listener_.get())),
        door_(std::move(listener_), meeting_of("test", "run", key), "the test",
              {.strangers = strangers,
               .patience = patience,
               .report = [this](const std::string& line) { lines.push_back(line); }}),
        thread_([this](const std::stop_token& stop) { serve(stop); }) {}

  [[nodiscard]] int port() const { return port_; }
  void close() { thread_ = {}; }  // joins

  std::vector<std::string> lines, introductions;  // read them after close()
  std::atomic<std::size_t> most_strangers{0};

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> watched;
      door_.add_to(watched);
      ::poll(watched.data(), watched.size(), 10);
      for (Door::Caller& caller : door_.serve()) {
        introductions.push_back(caller.introduction);
        (void)Door::answer(caller, "the host");
      }
      most_strangers = std::max(most_strangers.load(), door_.strangers());
    }
  }

  FileDescriptor listener_;
  int port_;
  Door door_;
  std::jthread thread_;
};

inline FileDescriptor connection_to(int port) {
  auto connection = connect_to("127.0.0.1", port);
  if (!connection) throw std::runtime_error("no process listens");
  return std::move(*connection);
}

// The host's answer, or the error.
inline std::string call(int port, const JobKey& key, const std::string& run = "run") {
  const FileDescriptor connection = connection_to(port);
  try {
    return introduce(connection.get(), meeting_of("test", run, key), "a caller", 5s).introduction;
  } catch (const NotOurHub& other) {
    return std::string("not ours: ") + other.what();
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

inline std::string frame_of(FrameKind kind, const std::string& payload, std::uint64_t bytes) {
  const FrameHeader header{.kind = kind, .bytes = bytes};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}
inline std::string frame_of(FrameKind kind, const std::string& payload) {
  return frame_of(kind, payload, payload.size());
}

inline constexpr std::uint32_t this_protocol = 4;

// Protocol, key, meeting, public key.
inline std::string knock(std::uint32_t protocol, const Meeting& meeting) {
  Writer writer;
  writer.number(protocol);
  writer.number<std::uint32_t>(1);
  writer.number(meeting.id);
  writer.number(PublicKey{9});
  return frame_of(FrameKind::knock, writer.bytes());
}

inline void send_all(int socket, const std::string& bytes) {
  (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Waits until the other end closes the connection; returns the time.
inline steady_clock::duration until_hung_up(int socket) {
  const auto begin = steady_clock::now();
  std::string bytes(4096, '\0');
  while (steady_clock::now() - begin < 30s) {
    pollfd wanted{socket, POLLIN, 0};
    if (::poll(&wanted, 1, 100) > 0 && ::recv(socket, bytes.data(), bytes.size(), 0) <= 0) break;
  }
  return steady_clock::now() - begin;
}

// Passes one connection on, and changes what it likes.
class Relay {
 public:
  // Gets the bytes that came from one end; what it returns goes to the other.
  using Edit = std::function<std::string(bool from_caller, std::string bytes)>;

  // Listens at `address` and `port`, 0 for a free one; the host is at 127.0.0.1.
  Relay(const char* address, int port, int host, Edit edit)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), edit_(std::move(edit)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, address, &at.sin_addr);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
        ::listen(listener_.get(), 16) != 0) {
      throw std::runtime_error("the relay cannot listen");
    }
    thread_ = std::jthread([this, host](const std::stop_token& stop) { pass_on(host, stop); });
  }
  [[nodiscard]] int port() const { return port_of(listener_.get()); }
  void close() { thread_ = {}; }  // joins

 private:
  void pass_on(int port, const std::stop_token& stop) {
    pollfd coming{listener_.get(), POLLIN, 0};
    while (!stop.stop_requested() && ::poll(&coming, 1, 10) <= 0) {
    }
    if (stop.stop_requested()) return;
    const FileDescriptor caller(::accept(listener_.get(), nullptr, nullptr));
    std::optional<FileDescriptor> to = connect_to("127.0.0.1", port);
    for (; !to && !stop.stop_requested(); to = connect_to("127.0.0.1", port)) {
      std::this_thread::sleep_for(10ms);
    }
    if (!to) return;
    const FileDescriptor host = std::move(*to);
    std::string bytes(1 << 16, '\0');
    while (!stop.stop_requested()) {
      pollfd ends[] = {{caller.get(), POLLIN, 0}, {host.get(), POLLIN, 0}};
      ::poll(ends, 2, 10);
      for (const int from : {0, 1}) {
        if (ends[from].revents == 0) continue;
        const ssize_t got = ::recv(ends[from].fd, bytes.data(), bytes.size(), 0);
        if (got <= 0) return;
        send_all(ends[1 - from].fd, edit_(from == 0, bytes.substr(0, static_cast<size_t>(got))));
      }
    }
  }

  FileDescriptor listener_;
  Edit edit_;
  std::jthread thread_;
};

// The sessions of the two ends of a connection.
inline std::pair<Session, Session> two_sessions(const JobKey& key) {
  Handshake caller(Handshake::End::caller, key, "meeting");
  Handshake host(Handshake::End::host, key, "meeting");
  if (!caller.agree(host.public_key()) || !host.agree(caller.public_key())) {
    throw std::runtime_error("the ends do not agree");
  }
  const StreamHeader of_host = host.stream_header();
  Session hosts = host.session(caller.stream_header());
  return {caller.session(of_host), std::move(hosts)};
}

// One of two ranks of a job.
inline World world_of_two(int rank, int port, const char* address, const char* run) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = 2;
  world.master_address = address;
  world.master_port = port;
  world.run_id = run;
  return world;
}

// Runs `work` for two ranks side by side. Returns their errors, "" for none.
inline std::vector<std::string> failures_of_two(const std::function<void(int rank)>& work) {
  std::vector<std::string> failures(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  ranks.clear();  // joins
  return failures;
}

}  // namespace tessera::comm::control::doors
