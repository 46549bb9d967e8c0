// The hub's thread: one poll over all connections.
#include "sharding/comm/control/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/version.h"

namespace tessera::comm::control {
namespace {

using Clock = std::chrono::steady_clock;
using RoundKey = std::pair<std::uint64_t, std::uint64_t>;  // group, round

std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 1099511628211u;
  }
  return hash;
}

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Introduction introduction_of(const World& world) {
  Introduction introduction;
  introduction.rank = world.rank;
  introduction.size = world.size;
  introduction.pid = getpid();
  TESSERA_SYSTEM(gethostname(introduction.host, sizeof(introduction.host) - 1));
  std::strncpy(introduction.library, library_version, sizeof(introduction.library) - 1);
  introduction.run = fingerprint(world.run_id);
  return introduction;
}

std::string encode(const Post& post) {
  Writer writer;
  writer.number(post.call);
  writer.number<std::uint8_t>(post.wants_answer ? 1 : 0);
  writer.number<std::uint64_t>(post.members.size());
  for (const std::int32_t member : post.members) writer.number(member);
  writer.text(post.group_name);
  writer.text(post.message);
  return writer.bytes();
}

Post decode_post(std::string_view payload) {
  Reader reader(payload);
  Post post;
  post.call = reader.number<Call>();
  post.wants_answer = reader.number<std::uint8_t>() != 0;
  post.members.resize(reader.number<std::uint64_t>());
  for (std::int32_t& member : post.members) member = reader.number<std::int32_t>();
  post.group_name = reader.text();
  post.message = reader.text();
  return post;
}

class Hub::Server {
 public:
  Server(FileDescriptor listener, const World& world, const Options& options)
      : options_(options),
        own_(introduction_of(world)),
        listener_(std::move(listener)),
        wake_(TESSERA_SYSTEM(eventfd(0, EFD_CLOEXEC))),
        began_(Clock::now()),
        last_post_(began_),
        ranks_(static_cast<std::size_t>(world.size)) {}

  void serve() {
    while (!over()) {
      std::vector<pollfd> watched = to_watch();
      if (::poll(watched.data(), watched.size(), 50) < 0 && errno != EINTR) return;
      for (const pollfd& one : watched) {
        if (one.revents == 0 || one.fd == wake_.get()) continue;
        if (one.fd == listener_.get()) {
          accept_one();
        } else {
          receive_from(one.fd);
        }
      }
      look_at_clocks();
    }
  }

  void stop() {
    stop_at_.store(Clock::now().time_since_epoch().count() +
                   std::chrono::duration_cast<Clock::duration>(options_.patience).count());
    const std::uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

 private:
  struct Rank {
    FileDescriptor connection;
    Introduction introduction;
    bool present = false;  // has come
    bool left = false;
  };
  struct Round {
    Clock::time_point began;
    std::vector<std::int32_t> members;
    std::map<std::int32_t, Post> posts;  // by rank
  };

  [[nodiscard]] bool over() const {
    const auto deadline = stop_at_.load();
    if (deadline == 0) return false;
    const bool all_gone = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.left || (rank.present && rank.connection.get() < 0) || !rank.present;
    });
    return all_gone || Clock::now().time_since_epoch().count() > deadline;
  }

  [[nodiscard]] std::vector<pollfd> to_watch() const {
    std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Rank& rank : ranks_) {
      if (rank.connection.get() >= 0) watched.push_back({rank.connection.get(), POLLIN, 0});
    }
    for (const FileDescriptor& guest : guests_) watched.push_back({guest.get(), POLLIN, 0});
    return watched;
  }

  [[nodiscard]] std::string name_of(std::int32_t rank) const {
    const Rank& it = ranks_[static_cast<std::size_t>(rank)];
    if (!it.present) return fmt::format("rank {} (has not come)", rank);
    return fmt::format("rank {} (pid {} on {})", rank, it.introduction.pid, it.introduction.host);
  }

  [[nodiscard]] std::string names_of(const std::vector<std::int32_t>& ranks) const {
    std::string names;
    for (const std::int32_t rank : ranks) names += (names.empty() ? "" : ", ") + name_of(rank);
    return names;
  }

  void accept_one() {
    const int connection = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    // One that says nothing must not hold up the job.
    set_receive_timeout(connection, std::chrono::milliseconds(2000));
    guests_.emplace_back(connection);
  }

  void receive_from(int socket) {
    const auto guest = std::find_if(guests_.begin(), guests_.end(),
                                    [&](const FileDescriptor& one) { return one.get() == socket; });
    if (guest != guests_.end()) {
      FileDescriptor connection = std::move(*guest);
      guests_.erase(guest);
      introduce(std::move(connection));
      return;
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].connection.get() == socket) {
        receive_from_rank(static_cast<std::int32_t>(rank));
        return;
      }
    }
  }

  void introduce(FileDescriptor connection) {
    try {
      const std::optional<Frame> frame = receive_frame(connection.get());
      if (!frame || frame->header.kind != FrameKind::hello) return;  // not one of ours
      const auto its = Reader(frame->payload).number<Introduction>();
      if (its.run != own_.run) return;  // another job's: to it, this is not the place
      if (const std::string why = reason_to_refuse(its); !why.empty()) {
        send_frame(connection.get(), {.kind = FrameKind::refusal}, why);
        return;
      }
      Rank& rank = ranks_[static_cast<std::size_t>(its.rank)];
      rank.introduction = its;
      rank.present = true;
      set_receive_timeout(connection.get(), std::chrono::milliseconds(0));
      rank.connection = std::move(connection);
      send_frame(rank.connection.get(), {.kind = FrameKind::hello}, {});
      if (!failure_.empty()) {
        tell_failure(rank);
        return;
      }
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.present; })) {
        complete_ = true;
        last_post_ = Clock::now();
        for (const Rank& one : ranks_) {
          send_frame(one.connection.get(), {.kind = FrameKind::welcome}, {});
        }
      }
    } catch (const Error&) {
      // The connection is gone; a rank that was behind it is missed at the deadline.
    }
  }

  [[nodiscard]] std::string reason_to_refuse(const Introduction& its) const {
    if (its.protocol != Introduction::protocol_version) {
      return fmt::format("rank {} runs version {} and rank 0 version {}: use one", its.rank,
                         its.library, own_.library);
    }
    if (its.size != own_.size || its.rank < 0 || its.rank >= own_.size) {
      return fmt::format("rank {} of a world of {} wants to join a world of {}", its.rank, its.size,
                         own_.size);
    }
    if (ranks_[static_cast<std::size_t>(its.rank)].present) {
      return fmt::format("there are two ranks {}: pid {} on {}, and {}", its.rank, its.pid,
                         its.host, name_of(its.rank));
    }
    return "";
  }

  void receive_from_rank(std::int32_t number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    try {
      const std::optional<Frame> frame = receive_frame(rank.connection.get());
      if (!frame) {
        rank.connection.reset();
        if (!rank.left) fail_job(fmt::format("{} ended without leaving", name_of(number)));
        return;
      }
      switch (frame->header.kind) {
        case FrameKind::post:
          take_post(number, frame->header, decode_post(frame->payload));
          return;
        case FrameKind::failure:
          fail_job(fmt::format("{} gave up: {}", name_of(number), frame->payload));
          return;
        case FrameKind::leave:
          rank.left = true;
          return;
        default:
          fail_job(fmt::format("{} sent a message that makes no sense", name_of(number)));
      }
    } catch (const Error& error) {
      rank.connection.reset();
      if (!rank.left) fail_job(fmt::format("{}: {}", name_of(number), error.what()));
    }
  }

  void take_post(std::int32_t number, const FrameHeader& header, Post post) {
    if (!failure_.empty()) return;  // every rank has been told; nobody gets an answer any more
    last_post_ = Clock::now();
    Round& round = rounds_[{header.group, header.round}];
    if (round.posts.empty()) {
      round.began = last_post_;
      round.members = post.members;
    } else if (const auto& [other, first] = *round.posts.begin(); !(first.call == post.call)) {
      fail_job(fmt::format("ranks call different collectives on '{}': {} is in {}, {} in {}",
                           first.group_name, name_of(other), describe(first.call), name_of(number),
                           describe(post.call)));
      return;
    }
    round.posts.emplace(number, std::move(post));
    if (round.posts.size() < round.members.size()) return;
    Writer answer;
    for (const std::int32_t member : round.members) answer.text(round.posts.at(member).message);
    for (const auto& [rank, its] : round.posts) {
      if (its.wants_answer) {
        send_to(rank, {.kind = FrameKind::answer, .group = header.group, .round = header.round},
                answer.bytes());
      }
    }
    rounds_.erase({header.group, header.round});
  }

  void send_to(std::int32_t rank, const FrameHeader& header, std::string_view payload) {
    try {
      send_frame(ranks_[static_cast<std::size_t>(rank)].connection.get(), header, payload);
    } catch (const Error&) {
      // Its end of the connection says the same to poll(), where it is reported.
    }
  }

  void look_at_clocks() {
    if (!failure_.empty()) return;
    const auto now = Clock::now();
    if (!complete_) {
      if (now - began_ > options_.rendezvous) fail_job(missing_at_rendezvous());
      return;
    }
    for (const auto& [key, round] : rounds_) {
      const auto missing = missing_in(round);
      const auto& [first, post] = *round.posts.begin();
      const auto gone = std::find_if(missing.begin(), missing.end(), [&](std::int32_t rank) {
        return ranks_[static_cast<std::size_t>(rank)].left;
      });
      if (gone != missing.end()) {
        fail_job(fmt::format("{} has left, and {} waits for it in {}", name_of(*gone),
                             name_of(first), describe(post.call)));
        return;
      }
      if (now - round.began > options_.collective) {
        fail_job(fmt::format("{} did not come to {} on '{}' within {} s; {} waits there",
                             names_of(missing), describe(post.call), post.group_name,
                             seconds(options_.collective), name_of(first)));
        return;
      }
    }
    if (now - last_post_ > options_.standstill) report_standstill();
  }

  [[nodiscard]] static std::vector<std::int32_t> missing_in(const Round& round) {
    std::vector<std::int32_t> missing;
    for (const std::int32_t member : round.members) {
      if (!round.posts.contains(member)) missing.push_back(member);
    }
    return missing;
  }

  [[nodiscard]] std::string missing_at_rendezvous() const {
    std::string missing;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].present) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
    return fmt::format("rank(s) {} of {} did not come within {} s", missing, ranks_.size(),
                       seconds(options_.rendezvous));
  }

  // Every rank waits in some round, and in no two rounds is it the same: none will ever go on.
  void report_standstill() {
    std::map<std::int32_t, const Post*> waiting;
    for (const auto& [key, round] : rounds_) {
      for (const auto& [rank, post] : round.posts) {
        if (post.wants_answer) waiting.emplace(rank, &post);
      }
    }
    if (waiting.size() < ranks_.size()) return;
    std::string text = "all ranks wait for one another:";
    for (const auto& [rank, post] : waiting) {
      text += fmt::format("{} {} in {} on '{}'", rank == 0 ? "" : ";", name_of(rank),
                          describe(post->call), post->group_name);
    }
    fail_job(text);
  }

  void fail_job(const std::string& text) {
    if (!failure_.empty()) return;
    failure_ = text;
    for (const Rank& rank : ranks_) {
      if (rank.connection.get() >= 0 && !rank.left) tell_failure(rank);
    }
  }

  void tell_failure(const Rank& rank) {
    try {
      send_frame(rank.connection.get(), {.kind = FrameKind::failure}, failure_);
    } catch (const Error&) {
      // It is gone as well.
    }
  }

  Options options_;
  Introduction own_;
  FileDescriptor listener_;
  FileDescriptor wake_;
  std::atomic<Clock::rep> stop_at_{0};
  Clock::time_point began_;
  Clock::time_point last_post_;
  bool complete_ = false;  // all ranks have come
  std::vector<Rank> ranks_;
  std::vector<FileDescriptor> guests_;  // connections that have not said who they are
  std::map<RoundKey, Round> rounds_;
  std::string failure_;
};

Hub::Hub(FileDescriptor listener, const World& world, const Options& options)
    : server_(std::make_unique<Server>(std::move(listener), world, options)),
      thread_([server = server_.get()] { server->serve(); }) {}

Hub::~Hub() {
  server_->stop();
}

}  // namespace tessera::comm::control
