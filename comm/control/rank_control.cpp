// A rank's connection to the hub.
#include "comm/control/rank_control.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "comm/watch/running_clock.h"

namespace tessera::comm::control {
namespace {

// The hub ends a wait that exceeds its limit; a rank that hears nothing from it waits this much
// longer.
constexpr std::chrono::milliseconds hub_lead{15'000};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ (value >> (8 * byte) & 0xff)) * 1099511628211u;  // FNV-1a
  }
  return hash;
}

}  // namespace

RankControl::RankControl(FileDescriptor connection, const World& world, const JobKey& key,
                         const Patience& patience)
    : rank_(world.rank),
      patience_(patience),
      connection_(std::move(connection)),
      watch_(patience.standstill) {
  watch_.set_own_thread();
  Admission admission = control::introduce(connection_.get(), meeting_of_ranks(world, key),
                                           encode(introduction_of(world)), patience.introduction);
  hub_ = decode_introduction(admission.introduction);
  session_ = std::move(admission.session);
  prepare_connection(connection_.get(), 2 * patience.standstill);
  set_receive_timeout(connection_.get(), patience.rendezvous + hub_lead);
  const std::optional<Frame> frame = receive_frame(connection_.get(), &session_);
  TESSERA_CHECK(frame.has_value(), ErrorCode::rank_failed,
                "rank {}: rank 0 closed the connection, or was silent for {} s, before all ranks "
                "had come",
                rank_, std::chrono::duration<double>(patience.rendezvous).count());
  TESSERA_CHECK(frame->header.kind == FrameKind::welcome, ErrorCode::rank_failed, "rank {}: {}",
                rank_, frame->payload);
  // This also detects a hub that stops in the middle of a frame.
  set_receive_timeout(connection_.get(), patience.standstill);
  set_send_timeout(connection_.get(), patience.standstill);
  reader_ = start_watcher("messages", [this] { read_on(); });
  try {
    beater_ = start_watcher("pulse", [this] { beat_on(); });
  } catch (...) {
    shutdown(connection_.get(), SHUT_RDWR);
    reader_.join();
    throw;
  }
}

RankControl::~RankControl() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (std::uncaught_exceptions() == 0) {
    try {
      send({.kind = FrameKind::leave}, {});
    } catch (const Error&) {
      // The hub is gone already.
    }
  }
  shutdown(connection_.get(), SHUT_RDWR);  // ends the reader's wait
  reader_.join();
  beater_.join();
}

void RankControl::read_on() {
  try {
    const std::chrono::milliseconds interval = beat_interval(patience_.standstill);
    RunningClock clock(2 * interval);
    std::chrono::nanoseconds heard{0};
    for (;;) {
      pollfd wanted{connection_.get(), POLLIN, 0};
      if (::poll(&wanted, 1, static_cast<int>(interval.count())) <= 0) {
        if (hub_is_silent(clock, heard)) return;
        continue;
      }
      const std::optional<Frame> frame = receive_frame(connection_.get(), &session_);
      if (!frame) break;
      heard = clock.look();
      if (frame->header.kind == FrameKind::failure) {
        fail_with(frame->payload);
      } else if (frame->header.kind == FrameKind::answer) {
        const std::lock_guard lock(mutex_);
        answers_[{frame->header.group, frame->header.round}] = frame->payload;
        changed_.notify_all();
      }
    }
  } catch (const Stalled&) {
    fail_with_silence();
    return;
  } catch (const Error& error) {
    fail_with(fmt::format("{}: {}", name_of(hub_), error.what()));
    return;
  }
  fail_with("rank 0, which combines the ranks' messages, ended without leaving");
}

bool RankControl::hub_is_silent(RunningClock& clock, std::chrono::nanoseconds& heard) {
  const std::chrono::nanoseconds now = clock.look();
  if (now - heard < patience_.standstill) return false;
  if (is_traced_here(hub_)) {  // a user looks at it with a debugger
    heard = now;
    return false;
  }
  fail_with_silence();
  return true;
}

void RankControl::fail_with_silence() {
  const std::string text = fmt::format(
      "{} has given no sign of life for {:.1f} s: its process was stopped or gets no processor "
      "time, "
      "or its host cannot be reached; find out who stopped it, and start the job again "
      "(TESSERA_STANDSTILL_TIMEOUT=SECONDS waits longer)",
      name_of(hub_), std::chrono::duration<double>(patience_.standstill).count());
  // The histories of the other ranks are at the hub, which does not answer.
  const std::string own = describe_histories({{rank_, history_.get()}});
  fail_with(own.empty() ? text : text + "; of this rank, " + own);
}

void RankControl::beat_on() {
  const std::chrono::milliseconds interval = beat_interval(patience_.standstill);
  RunningClock clock(2 * interval);
  ThreadActivity activity;
  RankMovement movement;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [&] { return leaving_; })) {
    lock.unlock();
    const std::chrono::nanoseconds before = clock.time();
    const StandstillWatch::Threads threads = watch_.threads();
    movement.look(threads, clock.look() - before,
                  [&]() -> const ThreadActivity& {
                    activity.look();
                    return activity;
                  },
                  {});
    BeatOfRank beat{{.still = movement.still().count(),
                     .device_still = device_still_.load(),
                     .waits_for_others = threads.wait_for_others},
                    {}};
    if (beat.beat.still > 0) beat.wait = describe_wait(threads.own);
    try {
      send({.kind = FrameKind::beat}, encode(beat));
    } catch (const Error&) {
      return;  // the reader finds the reason
    }
    lock.lock();
  }
}

void RankControl::send(const FrameHeader& header, std::string_view payload) {
  const std::lock_guard lock(sending_);
  send_frame(connection_.get(), header, payload, &session_);
}

void RankControl::fail_with(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (leaving_ || failure_) return;
  failure_ = text;
  changed_.notify_all();
}

bool RankControl::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

void RankControl::throw_failure(const Call& call) const {
  fail(ErrorCode::rank_failed, "rank {} in {}: {}", rank_, describe(call), *failure_);
}

void RankControl::check(const Call& call) const {
  if (home_.left()) home_.require(describe(call));
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure(call);
}

void RankControl::check_soon(const Call& call, std::chrono::milliseconds wait) const {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, wait, [&] { return failure_.has_value(); })) throw_failure(call);
}

void RankControl::abort(std::string_view reason) noexcept {
  if (home_.left()) return;
  try {
    send({.kind = FrameKind::failure}, reason);
  } catch (const std::exception&) {
    // The connection is gone, and the job with it: all ranks notice that.
  }
}

void RankControl::introduce(std::uint64_t group, const GroupOfRanks& ranks) {
  home_.require("a collective");
  send({.kind = FrameKind::group, .group = group}, encode(ranks));
}

void RankControl::post(const HistoryEntry& entry, const std::string& payload) {
  if (home_.left()) home_.require(describe(entry.call));
  history_.add(entry);
  try {
    send({.kind = FrameKind::post, .group = entry.channel, .round = entry.round}, payload);
  } catch (const Error&) {
    check_soon(entry.call, std::chrono::seconds(1));  // the hub's reason
    throw;
  }
}

std::vector<std::string> RankControl::await(std::uint64_t group, std::uint64_t round,
                                            std::size_t members, const Call& call) {
  const RemoteWait wait(watch_);
  watch_.set_call(describe(call));
  std::unique_lock lock(mutex_);
  const std::pair key(group, round);
  const auto limit = patience_.collective + hub_lead;
  const bool heard = changed_.wait_for(
      lock, limit, [&] { return failure_.has_value() || answers_.contains(key); });
  const auto found = answers_.find(key);
  if (found == answers_.end()) {
    if (failure_) throw_failure(call);
    TESSERA_CHECK(heard, ErrorCode::rank_failed,
                  "rank {} in {}: nothing was heard from rank 0 for {} s", rank_, describe(call),
                  std::chrono::duration<double>(limit).count());
  }
  const std::string payload = std::move(found->second);
  answers_.erase(found);
  lock.unlock();
  Reader reader(payload);
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < members; ++i) messages.emplace_back(reader.text());
  return messages;
}

HubGroup::HubGroup(std::shared_ptr<RankControl> control, std::vector<std::int32_t> members,
                   std::uint64_t id, std::string name)
    : control_(std::move(control)), members_(std::move(members)), id_(id), name_(std::move(name)) {
  const auto here = std::find(members_.begin(), members_.end(), control_->rank());
  TESSERA_REQUIRE(here != members_.end(), "rank {} is not in '{}'", control_->rank(), name_);
  position_ = static_cast<int>(here - members_.begin());
}

void HubGroup::post(const Call& call, std::uint64_t round, bool wants_answer,
                    std::string_view message) {
  if (!std::exchange(introduced_, true)) control_->introduce(id_, {members_, name_});
  control_->post(
      {id_, round, name_, call},
      encode({.call = call, .wants_answer = wants_answer, .message = std::string(message)},
             sent_names_));
}

void HubGroup::announce(const Call& call) {
  control_->check(call);
  if (size() == 1) return;
  post(call, round_++, false, {});
}

std::vector<std::string> HubGroup::exchange(const Call& call, std::string_view message) {
  control_->check(call);
  if (size() == 1) return {std::string(message)};
  const std::uint64_t round = round_++;
  const bool is_used = call.root < 0 || call.root == rank();
  post(call, round, true, is_used ? message : std::string_view{});
  return control_->await(id_, round, members_.size(), call);
}

HubGroup HubGroup::split(int color, int key, std::string_view name) {
  Writer mine;
  mine.number<std::int32_t>(color);
  mine.number<std::int32_t>(key);
  std::vector<std::tuple<int, std::int32_t>> ordered;  // (key, rank of the world)
  const auto answers = exchange(Call(Op::split, {.phase = Phase::setup}), mine.bytes());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    Reader reader(answers[i]);
    const auto its_color = reader.number<std::int32_t>();
    const auto its_key = reader.number<std::int32_t>();
    if (its_color == color) ordered.emplace_back(its_key, members_[i]);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return std::get<0>(a) < std::get<0>(b);  // equal keys keep the order of this group
  });
  std::vector<std::int32_t> members;
  for (const auto& [its_key, rank] : ordered) members.push_back(rank);
  const std::uint64_t id =
      mixed(mixed(mixed(14695981039346656037u, id_), ++splits_), static_cast<std::uint64_t>(color));
  return {control_, std::move(members), id, std::string(name)};
}

}  // namespace tessera::comm::control
