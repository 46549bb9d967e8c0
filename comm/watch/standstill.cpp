// Counts the threads of a rank that could move, and the time in which none could.
#include "comm/watch/standstill.h"

#include <unistd.h>

#include <algorithm>

namespace tessera::comm {
namespace {

// The longest step between two looks that counts as standing still. Looks are 20 ms apart.
constexpr std::int64_t longest_step = 100;
// The maximum age of a rank's published state, unless the limit is short.
constexpr std::int64_t longest_age = 1000;

std::int64_t now_milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// The worker in this thread, while it works for a rank.
struct Worker {
  StandstillWatch* watch = nullptr;
  int depth = 0;  // waits under way
};
thread_local Worker this_worker;

// For a worker, which needs its number twice for each piece of work: makes the system call only
// once. Not for a rank's own thread, which may fork.
pid_t number_of_worker() {
  thread_local const pid_t number = gettid();
  return number;
}

}  // namespace

void StandstillWatch::set_own_thread() {
  own_thread_ = std::this_thread::get_id();
  const std::lock_guard lock(mutex_);
  own_thread_number_ = gettid();
}

StandstillWatch::Threads StandstillWatch::threads() const {
  const std::lock_guard lock(mutex_);
  Threads threads{.own = own_thread_number_,
                  .workers = workers_,
                  .in_calls = {},
                  .wait_for_others = at_work_.load() == 0 && !calls_.empty(),
                  .wait_outside = outside_.load() > 0};
  for (const auto& [thread, call] : calls_) threads.in_calls.insert(thread);
  return threads;
}

void StandstillWatch::note(Activity activity) {
  switch (activity) {
    case Activity::worker_begins:
      return begin_worker();
    case Activity::worker_ends:
      return end_worker();
    case Activity::rank_waits:
      return begin_wait();
    case Activity::rank_goes_on:
      return end_wait();
    case Activity::outside_wait_begins:
      return begin_outside();
    case Activity::outside_wait_ends:
      return end_outside();
  }
}

int* StandstillWatch::depth_of_this_thread() {
  if (std::this_thread::get_id() == own_thread_) return &own_depth_;
  return this_worker.watch == this ? &this_worker.depth : nullptr;
}

// Work on the rank's own thread (serial streams) is counted there.
void StandstillWatch::begin_worker() {
  if (std::this_thread::get_id() == own_thread_) return;
  this_worker = {this, 0};
  {
    const std::lock_guard lock(mutex_);
    workers_.insert(number_of_worker());
  }
  moves_.fetch_add(1);
  at_work_.fetch_add(1);
}

void StandstillWatch::end_worker() {
  if (std::this_thread::get_id() == own_thread_) return;
  this_worker = {};
  {
    const std::lock_guard lock(mutex_);
    workers_.erase(number_of_worker());
  }
  moves_.fetch_add(1);
  at_work_.fetch_sub(1);
}

void StandstillWatch::begin_wait() {
  int* depth = depth_of_this_thread();
  if (depth == nullptr || (*depth)++ > 0) return;
  at_work_.fetch_sub(1);
}

void StandstillWatch::end_wait() {
  {
    const std::lock_guard lock(mutex_);
    if (!calls_.empty()) calls_.erase(gettid());
  }
  int* depth = depth_of_this_thread();
  if (depth == nullptr || --*depth > 0) return;
  moves_.fetch_add(1);
  at_work_.fetch_add(1);
}

void StandstillWatch::set_call(std::string_view call) {
  const std::lock_guard lock(mutex_);
  calls_[gettid()] = call;
}

std::string StandstillWatch::describe_calls() const {
  std::string text;
  for (const auto& [thread, call] : calls_) text += (text.empty() ? "" : " and in ") + call;
  return text;
}

bool StandstillWatch::all_stand(std::string_view call, StandingRank& own,
                                const std::vector<const StandingRank*>& ranks) {
  const std::lock_guard lock(mutex_);
  const std::int64_t now = now_milliseconds();
  const std::int64_t step = std::min(now - looked_at_, longest_step);
  looked_at_ = now;
  calls_[gettid()] = call;
  const std::uint64_t moves = moves_.load();
  const bool stands = at_work_.load() == 0 && remote_.load() == 0 && moves == moves_seen_;
  moves_seen_ = moves;
  stood_ = stands ? stood_ + step : 0;
  if (stands) own.calls.set(describe_calls());
  own.looked_at.store(now);
  own.stood.store(stood_);
  const std::int64_t limit = limit_.count();
  if (stood_ < limit || ranks.size() < 2) return false;
  const std::int64_t oldest = now - std::min(longest_age, limit / 2);
  return std::all_of(ranks.begin(), ranks.end(), [&](const StandingRank* rank) {
    return rank->stood.load() >= limit && rank->looked_at.load() >= oldest;
  });
}

}  // namespace tessera::comm
