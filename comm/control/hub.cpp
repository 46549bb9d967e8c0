// The hub's thread: one poll over all connections.
#include "comm/control/hub.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "comm/control/hub_server.h"
#include "comm/watch/thread_activity.h"

namespace tessera::comm::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds poll_interval{50};
constexpr std::chrono::milliseconds look_interval{20};
// Ranks that come at the same moment, all from one node, all count as strangers.
CrowdLimits strangers_for(const World& world) {
  const auto ranks = static_cast<std::size_t>(world.size);
  return {.all = 64 + ranks, .of_one_address = 16 + ranks};
}
constexpr std::size_t first_rank = 1;  // of what is watched

}  // namespace

// A hub that was stopped itself must not count that time as silence of ranks: each of its steps
// counts at most a few polls.
HubServer::HubServer(FileDescriptor listener, const World& world, const JobKey& key,
                     const Hub::Options& options)
    : options_(options),
      own_(introduction_of(world)),
      door_(std::move(listener), meeting_of_ranks(world, key), "rank 0",
            {.strangers = strangers_for(world)}),
      wake_(TESSERA_SYSTEM(eventfd(0, EFD_CLOEXEC))),
      began_(Clock::now()),
      notice_(options.rendezvous),
      clock_(4 * poll_interval),
      ranks_(static_cast<std::size_t>(world.size)) {}

void HubServer::serve() {
  while (!over()) {
    const std::vector<std::int32_t> open = open_connections();
    std::vector<pollfd> watched = to_watch(open);
    if (::poll(watched.data(), watched.size(), static_cast<int>(poll_interval.count())) < 0 &&
        errno != EINTR) {
      return;
    }
    clock_.look();
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (watched[first_rank + i].revents != 0) receive_from(open[i]);
      if (rank_at(open[i]).connection.has_unsent()) flush_to(open[i]);
    }
    let_in();
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

// A stopped rank will not leave: after a failure of the job the hub does not wait for it. It does
// wait for a rank behind a slow link, as long as data moves there.
bool HubServer::over() {
  const auto deadline = stop_at_.load();
  if (deadline == 0) return false;
  const bool all_gone = std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    const bool silent = clock_.time() - rank.heard >= options_.standstill;
    return rank.left || !rank.present || !rank.connection.open() || (!failure_.empty() && silent);
  });
  if (all_gone) return true;
  const Clock::time_point now = Clock::now();
  const bool delivering = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return !rank.left && rank.connection.has_undelivered();
  });
  if (delivering) delivered_ = now;
  return now.time_since_epoch().count() > deadline && now > delivered_ + options_.patience;
}

std::vector<std::int32_t> HubServer::open_connections() const {
  std::vector<std::int32_t> open;
  for (std::int32_t rank = 0; rank < own_.size; ++rank) {
    if (rank_at(rank).connection.open()) open.push_back(rank);
  }
  return open;
}

std::vector<pollfd> HubServer::to_watch(const std::vector<std::int32_t>& open) const {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};  // first_rank follows
  for (const std::int32_t rank : open) {
    const FrameStream& connection = rank_at(rank).connection;
    const int wanted = connection.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    watched.push_back({connection.socket(), static_cast<short>(wanted), 0});
  }
  door_.add_to(watched);
  return watched;
}

void HubServer::let_in() {
  for (Door::Caller& caller : door_.serve()) {
    try {
      introduce(std::move(caller));
    } catch (const Error&) {
      // The connection is gone; the deadline reports a rank that was behind it.
    }
  }
}

void HubServer::introduce(Door::Caller caller) {
  const Introduction its = decode_introduction(caller.introduction);
  if (const std::string why = reason_to_refuse(its); !why.empty()) {
    Door::refuse(caller, why);
    return;
  }
  Session session = Door::answer(caller, encode(own_));
  Rank& rank = rank_at(its.rank);
  rank.introduction = its;
  rank.present = true;
  rank.heard = rank.took = clock_.time();
  prepare_connection(caller.connection.get(), 2 * options_.standstill);
  rank.connection = FrameStream(std::move(caller.connection), std::move(session));
  if (!failure_.empty()) {
    tell_failure(rank);
    return;
  }
  if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.present; })) {
    complete_ = true;
    last_post_ = clock_.time();
    for (std::int32_t one = 0; one < own_.size; ++one) {
      rank_at(one).heard = rank_at(one).took = clock_.time();
      send_to(one, {.kind = FrameKind::welcome}, {});
    }
  }
}

std::string HubServer::reason_to_refuse(const Introduction& its) const {
  if (its.library_version() != own_.library_version()) {
    return fmt::format("rank {} runs Tessera {} and rank 0 {}: use one version", its.rank,
                       its.library_version(), own_.library_version());
  }
  if (its.size != own_.size || its.rank < 0 || its.rank >= own_.size) {
    return fmt::format("rank {} of a world of {} tries to join a world of {}", its.rank, its.size,
                       own_.size);
  }
  if (rank_at(its.rank).present) {
    return fmt::format("there are two ranks {}: pid {} on {}, and {}", its.rank, its.pid, its.host,
                       name_of_rank(its.rank));
  }
  return "";
}

void HubServer::receive_from(std::int32_t number) {
  Rank& rank = rank_at(number);
  try {
    // A part of a long message is a sign of life as well.
    if (rank.connection.receive()) rank.heard = clock_.time();
    while (rank.connection.open()) {
      const std::optional<Frame> frame = rank.connection.next();
      if (!frame) break;
      take_frame(number, *frame);
    }
    if (!rank.connection.ended()) return;
    rank.connection.close();
    if (!rank.left) {
      fail_job(with_histories(fmt::format("{} ended without leaving", name_of_rank(number))));
    }
  } catch (const Error& error) {
    rank.connection.close();
    if (!rank.left) {
      fail_job(with_histories(fmt::format("{}: {}", name_of_rank(number), error.what())));
    }
  }
}

void HubServer::take_frame(std::int32_t number, const Frame& frame) {
  Rank& rank = rank_at(number);
  switch (frame.header.kind) {
    case FrameKind::group:
      take_group(number, frame.header.group, decode_group(frame.payload));
      return;
    case FrameKind::post:
      take_post(number, frame.header, frame.payload);
      return;
    case FrameKind::beat:
      rank.beat = decode_beat(frame.payload);
      return;
    case FrameKind::failure:
      fail_job(fmt::format("{} gave up: {}", name_of_rank(number), frame.payload));
      return;
    case FrameKind::leave:
      rank.left = true;
      return;
    default:
      fail_job(fmt::format("{} sent a message of an unknown kind", name_of_rank(number)));
  }
}

// Bytes that do not fit into a socket are kept: a slow link to one rank delays no other rank.
void HubServer::flush_to(std::int32_t number) {
  Rank& rank = rank_at(number);
  try {
    if (rank.connection.flush()) rank.took = clock_.time();
    if (clock_.time() - rank.took < options_.standstill) return;
    rank.connection.close();
    fail_job(with_histories(
        fmt::format("{} has stopped: it no longer receives messages", name_of_rank(number))));
  } catch (const Error&) {
    // poll() reports the same failure at the rank's end of the connection.
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
  if (!failure_.empty()) return;  // every rank knows; the hub answers no more
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
    if (!rank_at(rank).connection.has_unsent()) rank_at(rank).took = clock_.time();
    rank_at(rank).connection.send(header, payload);
  } catch (const Error&) {
    // poll() reports the same failure at the rank's end of the connection.
  }
}

void HubServer::beat() {
  if (!complete_ || !failure_.empty() ||
      clock_.time() - last_beat_ < beat_interval(options_.standstill)) {
    return;
  }
  last_beat_ = clock_.time();
  for (std::size_t rank = 0; rank < ranks_.size() && failure_.empty(); ++rank) {
    // A rank with unsent data receives it as a sign of life.
    const FrameStream& connection = ranks_[rank].connection;
    if (ranks_[rank].left || !connection.open() || connection.has_unsent()) continue;
    send_to(static_cast<std::int32_t>(rank), {.kind = FrameKind::beat}, {});
  }
}

void HubServer::fail_job(const std::string& text) {
  if (!failure_.empty()) return;
  failure_ = text;
  for (Rank& rank : ranks_) {
    if (rank.connection.open() && !rank.left) tell_failure(rank);
  }
}

void HubServer::tell_failure(Rank& rank) {
  try {
    rank.connection.send({.kind = FrameKind::failure}, failure_);
  } catch (const Error&) {
    // The rank is gone as well.
  }
}

Hub::Hub(FileDescriptor listener, const World& world, const JobKey& key, const Options& options)
    : server_(std::make_unique<HubServer>(std::move(listener), world, key, options)),
      thread_(start_watcher("hub", [server = server_.get()] { server->serve(); })) {}

Hub::~Hub() {
  server_->stop();
  thread_.join();
}

}  // namespace tessera::comm::control
