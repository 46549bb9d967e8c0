// The thread that sends heartbeats and watches those of others.
#include "comm/watch/pulse.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tessera::comm {

std::chrono::milliseconds pulse_interval(std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  return std::clamp(limit / 25, milliseconds(10), milliseconds(200));
}

bool RankMovement::own_thread_computed(pid_t thread, std::chrono::nanoseconds step) {
  const std::int64_t now = processor_time_of(thread);
  const bool computed = now - processor_time_ >= step.count() / moving_share;
  processor_time_ = now;
  return now >= 0 && computed;
}

// Most looks are cheap: they find the rank's own thread computing, or waiting for others.
void RankMovement::look(const StandstillWatch::Threads& threads, std::chrono::nanoseconds step,
                        const std::function<const ThreadActivity&()>& activity,
                        std::set<pid_t> foreign) {
  foreign.insert(threads.in_calls.begin(), threads.in_calls.end());
  const bool computed = own_thread_computed(threads.own, step);
  const bool moves = computed || threads.wait_for_others || threads.wait_outside ||
                     activity().any_moved_but(foreign);
  still_ = moves ? std::chrono::nanoseconds(0) : still_ + step;
}

// Each step counts at most twice the interval: a process that was stopped must not count that time
// as silence of others.
Pulse::Pulse(std::vector<RankPulse*> ranks, std::chrono::milliseconds limit)
    : ranks_(std::move(ranks)),
      limit_(limit),
      interval_(pulse_interval(limit)),
      silence_(ranks_.size()),
      clock_(2 * interval_),
      heard_(ranks_.size()),
      thread_(start_watcher("pulse", [this] { beat_on(); })) {}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Pulse::begin(int rank, const StandstillWatch& watch) {
  const std::lock_guard lock(mutex_);
  own_[rank] = {&watch, {}};
  ranks_[static_cast<std::size_t>(rank)]->process.store(getpid());
}

void Pulse::end(int rank) {
  const std::lock_guard lock(mutex_);
  own_.erase(rank);
}

std::chrono::milliseconds Pulse::silence_of(int rank) const {
  return std::chrono::milliseconds(silence_[static_cast<std::size_t>(rank)].load());
}

void Pulse::beat_on() {
  std::unique_lock lock(mutex_);
  do {
    look();
  } while (!changed_.wait_for(lock, interval_, [this] { return ending_; }));
}

void Pulse::look() {
  const std::chrono::nanoseconds before = clock_.time();
  const std::chrono::nanoseconds now = clock_.look();
  std::map<int, StandstillWatch::Threads> threads;
  for (const auto& [rank, own] : own_) threads[rank] = own.watch->threads();
  bool looked = false;
  const auto activity = [&]() -> const ThreadActivity& {
    if (!std::exchange(looked, true)) activity_.look();
    return activity_;
  };
  for (auto& [rank, own] : own_) {
    std::set<pid_t> foreign;
    for (const auto& [other, its] : threads) {
      if (other == rank) continue;
      foreign.insert(its.own);
      foreign.insert(its.workers.begin(), its.workers.end());
      foreign.insert(its.in_calls.begin(), its.in_calls.end());
    }
    own.movement.look(threads[rank], now - before, activity, std::move(foreign));
    RankPulse& pulse = *ranks_[static_cast<std::size_t>(rank)];
    const std::int64_t still = own.movement.still().count();
    if (still > 0) pulse.wait.set(describe_wait(threads[rank].own));
    pulse.still.store(still);
    pulse.beats.fetch_add(1);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    Heard& heard = heard_[rank];
    const std::uint64_t beats = ranks_[rank]->beats.load();
    if (beats != heard.beats) heard = {beats, now};
    if (now - heard.at >= limit_ / 2 && is_traced(ranks_[rank]->process.load())) heard.at = now;
    silence_[rank].store(
        std::chrono::duration_cast<std::chrono::milliseconds>(now - heard.at).count());
  }
}

}  // namespace tessera::comm
