// Meetings of a group's ranks, and the watch over ranks that do not come.
#include "comm/shared/group.h"

#include <fmt/format.h>
#include <algorithm>
#include <exception>
#include <new>
#include <optional>

#include "base/error.h"

namespace tessera::comm {
namespace {

// A sleeping rank checks its peers this often; a wake reaches it at once.
constexpr std::chrono::milliseconds watch_interval{20};
// The time for a rank that leaves by an exception to report the reason; then its peers give up
// without the reason.
constexpr std::chrono::milliseconds reason_grace{1000};

std::size_t places_offset() {
  return round_up(sizeof(GroupBlock), alignof(GroupRank));
}

std::size_t mailboxes_offset(int size) {
  return round_up(places_offset() + sizeof(GroupRank) * static_cast<std::size_t>(size), page_bytes);
}

std::size_t outboxes_offset(int size) {
  return mailboxes_offset(size) + 2 * mailbox_bytes * static_cast<std::size_t>(size);
}

std::unique_ptr<Segment> map_block(const std::shared_ptr<Arena>& arena, std::uint64_t where,
                                   int size) {
  const std::size_t bytes = GroupBlock::bytes_for(size);
  return std::make_unique<Segment>(arena, where, bytes, arena->map(where, bytes));
}

}  // namespace

std::size_t GroupBlock::bytes_for(int size) {
  return outboxes_offset(size) + sizeof(GroupOutbox) * static_cast<std::size_t>(size);
}

GroupBlock* GroupBlock::create(std::byte* memory, int size) {
  auto* block = new (memory) GroupBlock;
  block->holders.store(static_cast<std::uint32_t>(size), std::memory_order_relaxed);
  auto* places = reinterpret_cast<GroupRank*>(memory + places_offset());
  auto* outboxes = reinterpret_cast<GroupOutbox*>(memory + outboxes_offset(size));
  for (int rank = 0; rank < size; ++rank) {
    new (&places[rank]) GroupRank;
    new (&outboxes[rank]) GroupOutbox;
  }
  return block;
}

Group::Group(std::shared_ptr<Job> job, std::uint64_t where, std::vector<int> members,
             std::string name)
    : job_(std::move(job)),
      segment_(map_block(job_->arena(), where, static_cast<int>(members.size()))),
      where_(where),
      members_(std::move(members)),
      name_(std::move(name)) {
  if (const auto& parts = job_->device_parts()) points_ = parts->points_of_group(where, size());
  const auto self = std::find(members_.begin(), members_.end(), job_->rank());
  TESSERA_REQUIRE(self != members_.end(), "rank {} is not a member of the group '{}'", job_->rank(),
                  name_);
  rank_ = static_cast<int>(self - members_.begin());
}

std::uint64_t Group::reserve_block(Arena& arena, int size) {
  const std::size_t bytes = GroupBlock::bytes_for(size);
  const std::uint64_t where = arena.reserve(bytes);
  std::byte* memory = arena.map(where, bytes);
  arena.commit(where, 0, bytes);
  GroupBlock::create(memory, size);
  arena.unmap(memory, bytes);
  return where;
}

GroupRank& Group::place(int rank) const {
  return reinterpret_cast<GroupRank*>(segment_->memory() + places_offset())[rank];
}

GroupOutbox& Group::outbox(int rank) const {
  return reinterpret_cast<GroupOutbox*>(segment_->memory() + outboxes_offset(size()))[rank];
}

char* Group::mailbox_of(int rank, std::uint64_t round) const {
  const std::size_t index = 2 * static_cast<std::size_t>(rank) + (round & 1);
  return reinterpret_cast<char*>(segment_->memory() + mailboxes_offset(size())) +
         index * mailbox_bytes;
}

void Group::meet(const Call& call, std::string_view message_part, std::uint64_t message_bytes) {
  TESSERA_REQUIRE(message_part.size() <= mailbox_bytes, "a message part of {} bytes does not fit",
                  message_part.size());
  check(call);
  const std::uint64_t round = ++round_;
  GroupRank& own = place(rank_);
  own.posts[round & 1] = {.call = call, .message_bytes = message_bytes};
  message_part.copy(mailbox_of(rank_, round), message_part.size());
  if (call.part == 0) job_->note({where_, round, name_, call});
  own.arrived.store(round);
  const auto awaited = [this, round](int rank) { return place(rank).arrived.load() < round; };
  // The last rank to arrive wakes the others: at least one rank sees all arrivals, because they
  // have one order.
  bool last = true;
  for (int rank = 0; rank < size() && last; ++rank) last = !awaited(rank);
  if (last) {
    wake();
  } else {
    wait(call, awaited);
  }
  compare_calls(call);
}

void Group::meet_with_queues(const Call& call) {
  if (points_) points_->post(rank_, round_ + 1);
  meet(call);
  if (points_) points_->await(round_);
}

std::uint64_t Group::message_bytes(int rank) const {
  return place(rank).posts[round_ & 1].message_bytes;
}

std::string_view Group::mailbox(int rank) const {
  return {mailbox_of(rank, round_), mailbox_bytes};
}

std::vector<std::string> Group::exchange(const Call& call, std::string_view message) {
  if (call.op == Op::barrier) {
    meet_with_queues(call);
    return {};
  }
  if (call.root >= 0 && call.root != rank_) message = {};
  std::vector<std::string> messages(members_.size());
  Call round = call;
  std::size_t longest = message.size();
  for (std::size_t begin = 0; begin == 0 || begin < longest; begin += mailbox_bytes) {
    meet(round, message.substr(std::min(begin, message.size()), mailbox_bytes), message.size());
    for (int rank = 0; rank < size(); ++rank) {
      const std::size_t bytes = message_bytes(rank);
      longest = std::max(longest, bytes);
      if (begin >= bytes) continue;
      messages[static_cast<std::size_t>(rank)] +=
          mailbox(rank).substr(0, std::min(mailbox_bytes, bytes - begin));
    }
    ++round.part;
  }
  return messages;
}

void Group::abort(std::string_view reason) noexcept {
  job_->abort(reason);
  wake();
}

void Group::compare_calls(const Call& call) const {
  for (int rank = 1; rank < size(); ++rank) {
    const Call& first = place(0).posts[round_ & 1].call;
    const Call& other = place(rank).posts[round_ & 1].call;
    if (first == other) continue;
    // Every rank compares with the group's first, so that all of them name the same pair.
    fail_with(
        call,
        fmt::format("the ranks of '{}' do not agree on their call number {}: {} called {}, but {} "
                    "called {}; every rank must make the same calls in the same order",
                    name_, round_, names_of({0}), describe(first), names_of({rank}),
                    describe(other)));
  }
}

void Group::check(const Call& call) const {
  if (job_->home().left()) job_->home().require(describe_here(call));
  if (job_->failed()) throw_failure(*job_, describe_here(call));
}

// The state of a wait between two looks at its peers.
struct Group::Watch {
  RunningClock clock{std::chrono::milliseconds(100)};  // from the beginning of the wait
  std::optional<std::chrono::nanoseconds> unwinding_since;
};

void Group::wait(const Call& call, const std::function<bool(int)>& awaited) {
  int rank = 0;
  // A rank that has arrived stays so: each check continues at the first one that was missing.
  const auto done = [&] {
    while (rank < size() && !awaited(rank)) ++rank;
    return rank == size();
  };
  for (ShortWait pause(job_->may_spin());;) {
    if (done()) return;
    if (!pause.pause()) break;
  }
  const bool between_processes = job_->arena()->between_processes();
  const WaitOfThread waits(job_->standstill());
  Watch watch;
  while (!block().wait_point.sleep(between_processes, watch_interval, done)) {
    check(call);
    look_after_peers(call, awaited, watch);
  }
}

void Group::look_after_peers(const Call& call, const std::function<bool(int)>& awaited,
                             Watch& watch) {
  job_->look_around(call);
  if (const std::vector<int> dead = job_->dead_ranks(); !dead.empty()) {
    std::string names;
    for (const int rank : dead) names += (names.empty() ? "" : ", ") + job_->name_of_rank(rank);
    fail_with(call,
              fmt::format(
                  "{} died while the others worked (its process is gone: see its own output or the "
                  "kernel's log for why)",
                  names));
  }
  std::vector<int> missing, gone, unwound;
  for (int rank = 0; rank < size(); ++rank) {
    // Read the state first: then the rank's actions before it left are visible as well.
    const std::uint32_t state = place(rank).state.load();
    const bool left = job_->has_left(members_[static_cast<std::size_t>(rank)]);
    if (!awaited(rank)) continue;
    missing.push_back(rank);
    if (state == GroupRank::unwound) {
      unwound.push_back(rank);
    } else if (state == GroupRank::closed || left) {
      gone.push_back(rank);
    }
  }
  if (!gone.empty()) {
    fail_with(
        call,
        fmt::format(
            "{} has finished with '{}' and will not come; every rank must make the same calls",
            names_of(gone), name_));
  }
  const auto now = watch.clock.look();
  if (!unwound.empty()) {
    if (!watch.unwinding_since) watch.unwinding_since = now;
    if (now - *watch.unwinding_since > reason_grace) {
      fail_with(call,
                fmt::format("{} left '{}' because of an exception", names_of(unwound), name_));
    }
  }
  std::string stopped;
  for (const int rank : missing) {
    const auto why = job_->look_for_stop(members_[static_cast<std::size_t>(rank)], now);
    if (why) stopped += (stopped.empty() ? "" : "; and ") + *why;
  }
  if (!stopped.empty()) fail_with(call, stopped);
  if (const auto standstill = job_->look_for_standstill(describe_here(call))) {
    fail_with(call, *standstill);
  }
  if (!missing.empty() && now > job_->timeout()) {
    std::string last;
    if (call.op != Op::acquire && round_ > 1) {  // all ranks agreed on this rank's last call
      last = fmt::format("; the last call of all ranks was {}",
                         describe(place(rank_).posts[(round_ - 1) & 1].call));
    }
    fail_with(
        call,
        fmt::format("{} did not come to {} within {:.1f} s (TESSERA_COMM_TIMEOUT): it works for "
                    "longer than that, or waits for something else{}",
                    names_of(missing), describe(call),
                    std::chrono::duration<double>(job_->timeout()).count(), last));
  }
}

void Group::fail_with(const Call& call, std::string_view cause) const {
  if (!job_->failed()) {
    const std::string histories = job_->describe_histories();
    job_->record_failure(fmt::format("{}{}{}", cause, histories.empty() ? "" : "; ", histories));
  }
  throw_failure(*job_, describe_here(call));
}

std::string Group::names_of(const std::vector<int>& group_ranks) const {
  std::string names;
  for (const int rank : group_ranks) {
    if (!names.empty()) names += ", ";
    names += job_->name_of_rank(members_[static_cast<std::size_t>(rank)]);
  }
  return names;
}

std::string Group::describe_here(const Call& call) const {
  return fmt::format("{} on '{}'", describe(call), name_);
}

void Group::close() noexcept {
  if (job_->home().left()) return;
  const bool unwinding = std::uncaught_exceptions() > 0;
  place(rank_).state.store(unwinding ? GroupRank::unwound : GroupRank::closed);
  wake();
}

}  // namespace tessera::comm
