// The hub's thread: one poll over all connections.
#include "sharding/comm/control/hub.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kernels/base/error.h"
#include "sharding/comm/control/hub_server.h"
#include "sharding/comm/thread_activity.h"

namespace tessera::comm::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds poll_interval{50};
constexpr std::chrono::milliseconds look_interval{20};

}  // namespace

// A hub that was stopped itself has heard nobody: its steps are counted up to a few polls.
HubServer::HubServer(FileDescriptor listener, const World& world, const Hub::Options& options)
    : options_(options),
      own_(introduction_of(world)),
      listener_(std::move(listener)),
      wake_(TESSERA_SYSTEM(eventfd(0, EFD_CLOEXEC))),
      began_(Clock::now()),
      clock_(4 * poll_interval),
      ranks_(static_cast<std::size_t>(world.size)) {}

void HubServer::serve() {
  while (!over()) {
    std::vector<pollfd> watched = to_watch();
    if (::poll(watched.data(), watched.size(), static_cast<int>(poll_interval.count())) < 0 &&
        errno != EINTR) {
      return;
    }
    clock_.look();
    for (const pollfd& one : watched) {
      if (one.revents == 0 || one.fd == wake_.get()) continue;
      if (one.fd == listener_.get()) {
        accept_one();
      } else {
        receive_from(one.fd);
      }
    }
    if (clock_.time() - last_look_ < look_interval) continue;
    last_look_ = clock_.time();
    beat();
    look_at_clocks();
  }
}

void HubServer::stop() {
  stop_at_.store(Clock::now().time_since_epoch().count() +
                 std::chrono::duration_cast<Clock::duration>(options_.patience).count());
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

// A rank that was stopped will not leave: when the job has failed it is not waited for.
bool HubServer::over() const {
  const auto deadline = stop_at_.load();
  if (deadline == 0) return false;
  const bool all_gone = std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    const bool silent = clock_.time() - rank.heard >= options_.standstill;
    return rank.left || !rank.present || rank.connection.get() < 0 || (!failure_.empty() && silent);
  });
  return all_gone || Clock::now().time_since_epoch().count() > deadline;
}

std::vector<pollfd> HubServer::to_watch() const {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    if (rank.connection.get() >= 0) watched.push_back({rank.connection.get(), POLLIN, 0});
  }
  for (const FileDescriptor& guest : guests_) watched.push_back({guest.get(), POLLIN, 0});
  return watched;
}

void HubServer::accept_one() {
  const int connection = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (connection < 0) return;
  // One that says nothing must not hold up the job.
  set_receive_timeout(connection, std::chrono::milliseconds(2000));
  guests_.emplace_back(connection);
}

void HubServer::receive_from(int socket) {
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

void HubServer::introduce(FileDescriptor connection) {
  try {
    const std::optional<Frame> frame = receive_frame(connection.get());
    if (!frame || frame->header.kind != FrameKind::hello) return;  // not one of ours
    const auto its = Reader(frame->payload).number<Introduction>();
    if (its.run != own_.run) return;  // another job's: to it, this is not the place
    if (const std::string why = reason_to_refuse(its); !why.empty()) {
      send_frame(connection.get(), {.kind = FrameKind::refusal}, why);
      return;
    }
    Rank& rank = rank_at(its.rank);
    rank.introduction = its;
    rank.present = true;
    rank.heard = clock_.time();
    // A rank that stops in the middle of a frame must not take the hub along.
    set_receive_timeout(connection.get(), options_.standstill / 2);
    set_send_timeout(connection.get(), options_.standstill / 2);
    rank.connection = std::move(connection);
    Writer answer;
    answer.number(own_);
    send_frame(rank.connection.get(), {.kind = FrameKind::hello}, answer.bytes());
    if (!failure_.empty()) {
      tell_failure(rank);
      return;
    }
    if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.present; })) {
      complete_ = true;
      last_post_ = clock_.time();
      for (Rank& one : ranks_) {
        one.heard = clock_.time();
        send_frame(one.connection.get(), {.kind = FrameKind::welcome}, {});
      }
    }
  } catch (const Error&) {
    // The connection is gone; a rank that was behind it is missed at the deadline.
  }
}

std::string HubServer::reason_to_refuse(const Introduction& its) const {
  if (its.protocol != Introduction::protocol_version) {
    return fmt::format("rank {} runs version {} and rank 0 version {}: use one", its.rank,
                       its.library, own_.library);
  }
  if (its.size != own_.size || its.rank < 0 || its.rank >= own_.size) {
    return fmt::format("rank {} of a world of {} wants to join a world of {}", its.rank, its.size,
                       own_.size);
  }
  if (rank_at(its.rank).present) {
    return fmt::format("there are two ranks {}: pid {} on {}, and {}", its.rank, its.pid, its.host,
                       name_of_rank(its.rank));
  }
  return "";
}

void HubServer::receive_from_rank(std::int32_t number) {
  Rank& rank = rank_at(number);
  try {
    const std::optional<Frame> frame = receive_frame(rank.connection.get());
    if (!frame) {
      rank.connection.reset();
      if (!rank.left) {
        fail_job(with_histories(fmt::format("{} ended without leaving", name_of_rank(number))));
      }
      return;
    }
    rank.heard = clock_.time();
    switch (frame->header.kind) {
      case FrameKind::group:
        take_group(number, frame->header.group, decode_group(frame->payload));
        return;
      case FrameKind::post:
        take_post(number, frame->header, frame->payload);
        return;
      case FrameKind::beat:
        rank.beat = decode_beat(frame->payload);
        return;
      case FrameKind::failure:
        fail_job(fmt::format("{} gave up: {}", name_of_rank(number), frame->payload));
        return;
      case FrameKind::leave:
        rank.left = true;
        return;
      default:
        fail_job(fmt::format("{} sent a message that makes no sense", name_of_rank(number)));
    }
  } catch (const Error& error) {
    rank.connection.reset();
    if (!rank.left) fail_job(fmt::format("{}: {}", name_of_rank(number), error.what()));
  }
}

void HubServer::take_group(std::int32_t number, std::uint64_t id, GroupOfRanks group) {
  const auto in_world = [&](std::int32_t rank) { return rank >= 0 && rank < own_.size; };
  const auto [known, is_new] = groups_.try_emplace(id);
  if (!std::all_of(group.members.begin(), group.members.end(), in_world) ||
      (!is_new && known->second.ranks.members != group.members)) {
    fail_job(fmt::format("{} is in another group '{}' than the others", name_of_rank(number),
                         group.name));
    return;
  }
  if (is_new) known->second.ranks = std::move(group);
}

void HubServer::take_post(std::int32_t number, const FrameHeader& header,
                          std::string_view payload) {
  if (!failure_.empty()) return;  // every rank has been told; nobody gets an answer any more
  const auto found = groups_.find(header.group);
  if (found == groups_.end()) {
    fail_job(fmt::format("{} posts in a group that it did not name", name_of_rank(number)));
    return;
  }
  Group& group = found->second;
  Post post = decode_post(payload, group.names);
  last_post_ = clock_.time();
  std::deque<HistoryEntry>& history = rank_at(number).history;
  history.emplace_back(header.group, header.round, group.ranks.name, post.call);
  if (history.size() > history_length) history.pop_front();
  const RoundKey key(header.group, header.round);
  Round& round = rounds_[key];
  if (round.posts.empty()) {
    round.began = last_post_;
  } else if (const auto& [other, first] = *round.posts.begin(); !(first.call == post.call)) {
    fail_job(with_histories(fmt::format(
        "ranks call different collectives on '{}': {} is in {}, {} in {}", group.ranks.name,
        name_of_rank(other), describe(first.call), name_of_rank(number), describe(post.call))));
    return;
  }
  round.posts.emplace(number, std::move(post));
  if (round.posts.size() < group.ranks.members.size()) return;
  answer_round(key, round, group);
  rounds_.erase(key);
}

void HubServer::answer_round(const RoundKey& key, const Round& round, const Group& group) {
  const bool anyone = std::any_of(round.posts.begin(), round.posts.end(),
                                  [](const auto& one) { return one.second.wants_answer; });
  if (!anyone) return;
  Writer answer;
  for (const std::int32_t member : group.ranks.members) answer.text(round.posts.at(member).message);
  for (const auto& [rank, its] : round.posts) {
    if (!its.wants_answer) continue;
    send_to(rank, {.kind = FrameKind::answer, .group = key.first, .round = key.second},
            answer.bytes());
  }
}

void HubServer::send_to(std::int32_t rank, const FrameHeader& header, std::string_view payload) {
  try {
    send_frame(rank_at(rank).connection.get(), header, payload);
  } catch (const Stalled& stalled) {
    // Half a frame may have gone out: nothing more can be said to it.
    rank_at(rank).connection.reset();
    fail_job(with_histories(fmt::format("{} has stopped: {}", name_of_rank(rank), stalled.what())));
  } catch (const Error&) {
    // Its end of the connection says the same to poll(), where it is reported.
  }
}

void HubServer::beat() {
  if (!complete_ || !failure_.empty() ||
      clock_.time() - last_beat_ < beat_interval(options_.standstill)) {
    return;
  }
  last_beat_ = clock_.time();
  for (std::size_t rank = 0; rank < ranks_.size() && failure_.empty(); ++rank) {
    if (ranks_[rank].left || ranks_[rank].connection.get() < 0) continue;
    send_to(static_cast<std::int32_t>(rank), {.kind = FrameKind::beat}, {});
  }
}

// Those that answer are told first: sending to one that was stopped may take a while.
void HubServer::fail_job(const std::string& text) {
  if (!failure_.empty()) return;
  failure_ = text;
  for (const bool silent : {false, true}) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& it = ranks_[rank];
      if (it.connection.get() < 0 || it.left) continue;
      if (is_silent(static_cast<std::int32_t>(rank)) == silent) tell_failure(it);
    }
  }
}

void HubServer::tell_failure(const Rank& rank) {
  try {
    send_frame(rank.connection.get(), {.kind = FrameKind::failure}, failure_);
  } catch (const Error&) {
    // It is gone as well.
  }
}

Hub::Hub(FileDescriptor listener, const World& world, const Options& options)
    : server_(std::make_unique<HubServer>(std::move(listener), world, options)),
      thread_(start_watcher("hub", [server = server_.get()] { server->serve(); })) {}

Hub::~Hub() {
  server_->stop();
  thread_.join();
}

}  // namespace tessera::comm::control
