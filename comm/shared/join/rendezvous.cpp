// Rank 0's table of the ranks that have come, and the connection of the other ranks to it.
#include "comm/shared/join/rendezvous.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/shared/join/handshake.h"
#include "comm/wait_notice.h"
#include "comm/watch/crowd.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

FileDescriptor open_process(int rank, int pid) {
  FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  TESSERA_CHECK(process.get() >= 0 || errno != ESRCH, ErrorCode::rank_failed,
                "rank {} (pid {}) died before the ranks had found each other", rank, pid);
  TESSERA_CHECK(process.get() >= 0, ErrorCode::runtime,
                "cannot watch the process of rank {} (pid {}): {}; Linux 5.3 is needed, and ranks "
                "that see each "
                "other's processes",
                rank, pid, describe_errno("pidfd_open", errno));
  return process;
}

std::string list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// Rank 0's side: it listens until every rank has sent its hello.
class Host {
 public:
  Host(const World& world, std::chrono::milliseconds timeout)
      : world_(world), timeout_(timeout), deadline_(Clock::now() + timeout), notice_(timeout) {
    members_.resize(static_cast<std::size_t>(world.size));
    const MeetingAddress meeting = meeting_address(world);
    listener_ = FileDescriptor(
        TESSERA_SYSTEM(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    const int result =
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&meeting.address), meeting.length);
    if (result != 0 && errno == EADDRINUSE) require_own_name(meeting);
    TESSERA_CHECK(
        result == 0 || errno != EADDRINUSE, ErrorCode::configuration,
        "another rank 0 waits at MASTER_ADDR={} MASTER_PORT={} on this host: two processes have "
        "RANK=0, "
        "or two jobs use one port; give each rank its own RANK, or the job another MASTER_PORT",
        world.master_address, world.master_port);
    TESSERA_CHECK(result == 0, ErrorCode::runtime, "{}", describe_errno("bind", errno));
    TESSERA_SYSTEM(listen(listener_.get(), SOMAXCONN));
  }

  void wait_for_all() {
    try {
      while (!missing().empty()) step();
    } catch (const Error& error) {
      refuse_all(error);
      throw;
    }
    listener_.reset();  // before any rank continues: the next job may use the address
    strangers_.clear();
  }

  void refuse_all(const Error& error) const {
    for (const Member& member : members_) {
      if (member.socket.get() >= 0) {
        send_refusal(member.socket.get(), static_cast<int>(error.code()), error.what());
      }
    }
    for (const Stranger& stranger : strangers_) {
      send_refusal(stranger.socket.get(), static_cast<int>(error.code()), error.what());
    }
    for (FileDescriptor late = accept_one(); late.get() >= 0; late = accept_one()) {
      send_refusal(late.get(), static_cast<int>(error.code()), error.what());
    }
  }

  [[nodiscard]] int pid(int rank) const { return members_[static_cast<std::size_t>(rank)].pid; }
  [[nodiscard]] int socket_of(int rank) const {
    return members_[static_cast<std::size_t>(rank)].socket.get();
  }

 private:
  struct Member {
    FileDescriptor socket;
    int pid = 0;
  };
  struct Stranger {  // of this user; connected, its hello is still missing
    FileDescriptor socket;
    Peer peer;
    std::string address = {};
  };

  // Throws when a process of another user has the name. Keeps errno.
  void require_own_name(const MeetingAddress& meeting) const {
    const int error = errno;
    const FileDescriptor probe(
        TESSERA_SYSTEM(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&meeting.address),
                  meeting.length) == 0) {
      const Peer holder = peer_of(probe.get());
      TESSERA_CHECK(holder.uid == getuid(), ErrorCode::configuration,
                    "a process of another user (pid {}, uid {}) has the name at which the ranks of "
                    "MASTER_ADDR={} MASTER_PORT={} meet on this host; choose another MASTER_PORT",
                    holder.pid, holder.uid, world_.master_address, world_.master_port);
    }
    errno = error;
  }

  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < world_.size; ++rank) {
      if (members_[static_cast<std::size_t>(rank)].pid == 0) ranks.push_back(rank);
    }
    return ranks;
  }

  [[nodiscard]] FileDescriptor accept_one() const {
    return FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }

  // Waits for the next event and handles it.
  void step() {
    const bool accepts = pause_.over();
    std::vector<pollfd> watched{
        {.fd = accepts ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
    for (const Member& member : members_) {
      watched.push_back({.fd = member.socket.get(), .events = POLLIN, .revents = 0});
    }
    for (const Stranger& stranger : strangers_) {
      watched.push_back({.fd = stranger.socket.get(), .events = POLLIN, .revents = 0});
    }
    notice_.look([this] {
      return fmt::format("rank 0 waits for {} of {} at MASTER_ADDR={} MASTER_PORT={} on this host",
                         list(missing()), world_.size, world_.master_address, world_.master_port);
    });
    auto sleep = notice_.longest_sleep(std::chrono::milliseconds(milliseconds_until(deadline_)));
    if (!accepts) sleep = std::min(sleep, ListenerPause::length);
    const int ready = poll(watched.data(), watched.size(), static_cast<int>(sleep.count()));
    TESSERA_CHECK(ready >= 0 || errno == EINTR, ErrorCode::runtime, "{}",
                  describe_errno("poll", errno));
    if (ready > 0) serve(watched);
    if (accepts) accept_strangers();
    if (!missing().empty()) check_deadline();
  }

  void serve(const std::vector<pollfd>& watched) {
    for (int rank = 1; rank < world_.size; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      TESSERA_CHECK(watched[1 + index].revents == 0, ErrorCode::rank_failed,
                    "rank {} (pid {}) died or gave up before the ranks had found each other", rank,
                    pid(rank));
    }
    std::vector<Stranger> silent;
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      const bool has_spoken = watched[1 + members_.size() + i].revents != 0;
      if (has_spoken) {
        welcome(std::move(strangers_[i]));
      } else {
        silent.push_back(std::move(strangers_[i]));
      }
    }
    strangers_ = std::move(silent);
  }

  // Another user's connection has no place here. Of this user's, the oldest makes room.
  void accept_strangers() {
    const auto has_spoken = [](const Stranger& stranger) {
      pollfd wanted{.fd = stranger.socket.get(), .events = POLLIN, .revents = 0};
      return poll(&wanted, 1, 0) > 0 ? Standing::has_spoken : Standing::silent;
    };
    const CrowdLimits limits{.all = 64 + members_.size(), .of_one_address = 64 + members_.size()};
    for (int i = 0; i < CrowdLimits::accepted_a_turn; ++i) {
      FileDescriptor socket = accept_one();
      if (socket.get() < 0) {
        if (pause_.makes_room(errno, strangers_, has_spoken)) continue;
        return;
      }
      const Peer peer = peer_of(socket.get());
      if (peer.uid != getuid()) {
        ++turned_away_;
        continue;
      }
      make_room(strangers_, limits, "", has_spoken);
      strangers_.push_back({.socket = std::move(socket), .peer = peer});
    }
  }

  void check_deadline() const {
    if (Clock::now() < deadline_) return;
    std::string strangers;
    if (turned_away_ > 0 || !strangers_.empty()) {
      strangers = fmt::format("; {} connections came from other programs",
                              turned_away_ + strangers_.size());
    }
    fail(ErrorCode::rank_failed,
         "{} of {} did not come to MASTER_ADDR={} MASTER_PORT={} within {:.1f} s{}; start every "
         "rank on this host "
         "with the same values",
         list(missing()), world_.size, world_.master_address, world_.master_port,
         std::chrono::duration<double>(timeout_).count(), strangers);
  }

  // Receives a stranger's hello. A message that is not a hello is rejected, and the job continues;
  // a rank that does not fit is the user's mistake and ends the job.
  void welcome(Stranger stranger) {
    Hello hello;
    const ssize_t bytes = recv(stranger.socket.get(), &hello, sizeof(hello), MSG_TRUNC);
    const int caller = stranger.peer.pid;
    if (bytes < static_cast<ssize_t>(offsetof(Hello, rank)) || hello.magic != Hello::magic_number) {
      ++turned_away_;
      send_refusal(stranger.socket.get(), static_cast<int>(ErrorCode::configuration),
                   "this socket belongs to a Tessera job; the message is not a rank's handshake");
      return;
    }
    const Hello own = hello_of(world_);
    strangers_.push_back(std::move(stranger));  // so that it receives a refusal
    hello.library[sizeof(hello.library) - 1] = '\0';
    TESSERA_CHECK(hello.protocol == own.protocol && std::strcmp(hello.library, own.library) == 0 &&
                      bytes == static_cast<ssize_t>(sizeof(hello)),
                  ErrorCode::configuration,
                  "pid {} runs version {} of Tessera (protocol {}), and rank 0 (pid {}) runs {} "
                  "(protocol {}); all "
                  "ranks need the same",
                  caller, hello.library, hello.protocol, getpid(), own.library, own.protocol);
    TESSERA_CHECK(
        hello.size == own.size && hello.local_size == own.local_size, ErrorCode::configuration,
        "rank {} (pid {}) has WORLD_SIZE={} and {} ranks on this host, and rank 0 (pid {}) has {} "
        "and {}; "
        "all ranks need the same",
        hello.rank, caller, hello.size, hello.local_size, getpid(), own.size, own.local_size);
    TESSERA_CHECK(hello.rank >= 0 && hello.rank < own.size, ErrorCode::configuration,
                  "pid {} has RANK={}, and the ranks of a world of {} are 0 to {}", caller,
                  hello.rank, own.size, own.size - 1);
    Member& member = members_[static_cast<std::size_t>(hello.rank)];
    const int earlier = hello.rank == 0 ? getpid() : member.pid;
    TESSERA_CHECK(
        earlier == 0, ErrorCode::configuration,
        "there are two ranks {}: pid {} and pid {} have RANK={}; give each process its own RANK",
        hello.rank, earlier, caller, hello.rank);
    TESSERA_CHECK(
        caller > 0, ErrorCode::configuration,
        "rank {} runs in another pid namespace than rank 0; start all ranks in one container",
        hello.rank);
    member.pid = caller;
    member.socket = std::move(strangers_.back().socket);
    strangers_.pop_back();
  }

  const World& world_;
  std::chrono::milliseconds timeout_;
  Clock::time_point deadline_;
  WaitNotice notice_;
  FileDescriptor listener_;
  std::vector<Member> members_;  // by rank
  std::vector<Stranger> strangers_;
  ListenerPause pause_;
  std::size_t turned_away_ = 0;
};

// Connects to rank 0, which may start later than this rank.
FileDescriptor connect_to_host(const World& world, Clock::time_point deadline,
                               std::chrono::milliseconds timeout) {
  const MeetingAddress meeting = meeting_address(world);
  WaitNotice notice(timeout);
  for (std::chrono::milliseconds pause{2};;
       pause = std::min(pause * 2, std::chrono::milliseconds(50))) {
    FileDescriptor socket(TESSERA_SYSTEM(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&meeting.address),
                  meeting.length) == 0) {
      return socket;
    }
    TESSERA_CHECK(errno == ECONNREFUSED || errno == EINTR || errno == EAGAIN, ErrorCode::runtime,
                  "{}", describe_errno("connect", errno));
    TESSERA_CHECK(Clock::now() < deadline, ErrorCode::rank_failed,
                  "rank 0 did not come to MASTER_ADDR={} MASTER_PORT={} within {:.1f} s; start "
                  "every rank on this "
                  "host with the same values (rank {} waited)",
                  world.master_address, world.master_port,
                  std::chrono::duration<double>(timeout).count(), world.rank);
    notice.look([&world] {
      return fmt::format("rank {} waits for rank 0 at MASTER_ADDR={} MASTER_PORT={} on this host",
                         world.rank, world.master_address, world.master_port);
    });
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

JobHandles host_rendezvous(const World& world, std::chrono::milliseconds timeout,
                           FileDescriptor memory, const std::function<void(int, int)>& set_pid) {
  Host host(world, timeout);
  host.wait_for_all();
  JobHandles handles{.memory = std::move(memory), .processes = {}};
  try {
    std::vector<int> numbers{handles.memory.get()};
    for (int rank = 0; rank < world.size; ++rank) {
      const int pid = rank == 0 ? getpid() : host.pid(rank);
      set_pid(rank, pid);
      handles.processes.push_back(open_process(rank, pid));
      numbers.push_back(handles.processes.back().get());
    }
    for (int rank = 1; rank < world.size; ++rank) send_handles(host.socket_of(rank), numbers);
  } catch (const Error& error) {
    host.refuse_all(error);
    throw;
  }
  return handles;
}

JobHandles join_rendezvous(const World& world, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const FileDescriptor socket = connect_to_host(world, deadline, timeout);
  const Peer host = peer_of(socket.get());
  TESSERA_CHECK(host.uid == getuid(), ErrorCode::configuration,
                "a process of another user (pid {}, uid {}) listens at MASTER_ADDR={} "
                "MASTER_PORT={}; choose another "
                "MASTER_PORT",
                host.pid, host.uid, world.master_address, world.master_port);
  const Hello hello = hello_of(world);
  send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL);  // a failure shows in the answer
  // Rank 0 knows which ranks are missing, so it may report first.
  const Clock::time_point patience = deadline + std::chrono::seconds(2);
  pollfd watched{.fd = socket.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&watched, 1, milliseconds_until(patience));
  } while (ready < 0 && errno == EINTR);
  TESSERA_CHECK(ready > 0, ErrorCode::rank_failed,
                "rank 0 (pid {}) took rank {}'s call and did not answer within {:.1f} s: it hangs, "
                "or waits for a rank "
                "that does not come",
                host.pid, world.rank, std::chrono::duration<double>(timeout).count());
  Answer answer = receive_answer(socket.get());
  if (!answer.refusal.empty())
    throw Error(static_cast<ErrorCode>(answer.error_code), answer.refusal);
  TESSERA_CHECK(answer.handles.size() == static_cast<std::size_t>(world.size) + 1,
                ErrorCode::rank_failed,
                "rank 0 (pid {}) died before the ranks had found each other", host.pid);
  JobHandles handles{.memory = std::move(answer.handles.front()), .processes = {}};
  for (std::size_t i = 1; i < answer.handles.size(); ++i) {
    handles.processes.push_back(std::move(answer.handles[i]));
  }
  return handles;
}

}  // namespace tessera::comm
