// Outcomes of all ranks, exchanged so that no rank waits for one that has failed, and repeatedly
// while a rank works.
#include "checkpoint/io/collective.h"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/parallel.h"
#include "checkpoint/io/disk_watch.h"
#include "engine/device/backend.h"
#include "engine/device/queue.h"

namespace tessera::checkpoint {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Far less than the timeout of any collective.
constexpr milliseconds work_beat{200};

// First character of an outcome. It keeps the kind of a failure: a job that lacked memory is
// restarted, one whose checkpoint is damaged is not; misuse and a wrong configuration are not the
// checkpoint's fault.
constexpr char outcome_good = '+';
constexpr char outcome_bad = '-';
constexpr char outcome_no_memory = 'm';
constexpr char outcome_misuse = '!';
constexpr char outcome_configuration = 'c';
constexpr char still_at_work = '~';
constexpr char told_before = '=';

// One rank's work, on a thread of its own. Shared with that thread, which may outlive the caller.
struct Work {
  explicit Work(SystemCalls& calls) : watch(calls) {}

  DiskWatch watch;
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<std::string> outcome;
};

bool is_failure(char kind) {
  return kind == outcome_bad || kind == outcome_no_memory || kind == outcome_misuse ||
         kind == outcome_configuration;
}

char kind_of(const Error& error) {
  if (error.code() == ErrorCode::out_of_memory) return outcome_no_memory;
  return error.code() == ErrorCode::configuration ? outcome_configuration : outcome_bad;
}

ErrorCode code_of(char kind) {
  if (kind == outcome_no_memory) return ErrorCode::out_of_memory;
  return kind == outcome_configuration ? ErrorCode::configuration : ErrorCode::checkpoint;
}

std::string outcome_of(const std::function<std::string()>& work) {
  try {
    return outcome_good + work();
  } catch (const std::bad_alloc&) {
    return std::string(1, outcome_no_memory) + "out of memory";
  } catch (const Error& error) {
    return std::string(1, kind_of(error)) + error.what();
  } catch (const std::logic_error& error) {
    return std::string(1, outcome_misuse) + error.what();
  } catch (const std::exception& error) {
    return std::string(1, outcome_bad) + error.what();
  }
}

class WorkThread {
 public:
  WorkThread(Device device, std::function<std::string()> body, StallRule rule)
      : rule_(rule), work_(std::make_shared<Work>(system_calls())) {
    DeviceQueue* queue = device.type == DeviceType::cuda ? &current_queue(device) : nullptr;
    const int threads = compute_threads();
    thread_ = std::thread([work = work_, device, queue, threads, body = std::move(body)]() mutable {
      set_compute_threads(threads);
      std::string outcome;
      {
        const ScopedSystemCalls watched(work->watch);
        std::optional<QueueGuard> same_queue;
        if (queue != nullptr) {
          backend_of(device.type).bind_thread(device);
          same_queue.emplace(*queue);
        }
        outcome = outcome_of(body);
      }
      body = nullptr;  // free what it owns before reporting the outcome
      const std::lock_guard lock(work->mutex);
      work->outcome = std::move(outcome);
      work->ended.notify_all();
    });
  }
  ~WorkThread() {
    if (!thread_.joinable()) return;
    work_->watch.cancel();
    if (rule_.may_abandon && stalled_) {  // the call may hang in the kernel forever
      thread_.detach();
      return;
    }
    if (rule_.may_abandon && rule_.timeout.count() > 0) {
      std::unique_lock lock(work_->mutex);
      if (!work_->ended.wait_for(lock, rule_.timeout, [&] { return work_->outcome.has_value(); })) {
        thread_.detach();
        return;
      }
    }
    thread_.join();
  }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void cancel() { work_->watch.cancel(); }

  // Waits for one interval: returns the outcome, or nothing while the work goes on.
  std::optional<std::string> wait() {
    {
      std::unique_lock lock(work_->mutex);
      if (work_->ended.wait_for(lock, work_beat, [&] { return work_->outcome.has_value(); })) {
        lock.unlock();
        thread_.join();
        return std::move(work_->outcome);
      }
    }
    const std::uint64_t moves = work_->watch.moves();
    const std::string call = work_->watch.describe_call();
    const auto now = Clock::now();
    if (moves != moves_ || call.empty()) {  // the work computes, so the disk is not the cause
      moves_ = moves;
      moved_at_ = now;
    }
    if (rule_.timeout.count() == 0 || now - moved_at_ < rule_.timeout) return std::nullopt;
    stalled_ = true;
    return fmt::format(
        "{}the disk does not respond: {} has not returned for {:.1f} s (checkpoint.stall_timeout)",
        outcome_bad, call, std::chrono::duration<double>(rule_.timeout).count());
  }

 private:
  StallRule rule_;
  bool stalled_ = false;
  std::shared_ptr<Work> work_;
  std::thread thread_;
  std::uint64_t moves_ = 0;
  Clock::time_point moved_at_ = Clock::now();
};

// The ranks' outcomes as they arrive, by rank; empty: none yet.
class Outcomes {
 public:
  void add(std::vector<std::string> round) {
    outcomes_.resize(round.size());
    for (std::size_t rank = 0; rank < round.size(); ++rank) {
      const char kind = round[rank].at(0);
      if (kind == outcome_good || is_failure(kind)) outcomes_[rank] = std::move(round[rank]);
    }
  }
  [[nodiscard]] bool complete() const {
    for (const std::string& outcome : outcomes_) {
      if (outcome.empty()) return false;
    }
    return true;
  }
  // Records ranks that failed by themselves; later failures follow from the order to end.
  void note_failures() {
    if (first_) return;
    for (std::size_t rank = 0; rank < outcomes_.size(); ++rank) {
      if (outcomes_[rank].empty() || !is_failure(outcomes_[rank][0])) continue;
      others_ += first_ ? 1 : 0;
      if (!first_) first_ = rank;
    }
  }
  [[nodiscard]] bool failed() const { return first_.has_value(); }

  std::vector<std::string> finish(std::string_view doing) {
    if (first_) {
      const std::string more = others_ == 0
                                   ? std::string()
                                   : fmt::format(" (and {} failed)", counted(others_, "more rank"));
      const std::string& outcome = outcomes_[*first_];
      const std::string text =
          fmt::format("{}: rank {}: {}{}", doing, *first_, outcome.substr(1), more);
      if (outcome[0] == outcome_misuse) misuse("{}", text);
      fail(code_of(outcome[0]), "{}", text);
    }
    for (std::string& outcome : outcomes_) outcome.erase(0, 1);
    return std::move(outcomes_);
  }

 private:
  std::vector<std::string> outcomes_;
  std::optional<std::size_t> first_;
  std::size_t others_ = 0;
};

}  // namespace

std::vector<std::string> run_on_all_ranks(comm::Communicator& communicator, std::string_view doing,
                                          std::function<std::string()> work, StallRule rule) {
  const comm::Tag tag{.step = 0, .unit = 0, .phase = comm::Phase::checkpoint};
  WorkThread thread(communicator.device(), std::move(work), rule);
  Outcomes outcomes;
  bool ended = false;
  do {
    std::string word(1, told_before);
    if (!ended) {
      std::optional<std::string> outcome;
      {
        const comm::OutsideWait the_disk(communicator);
        outcome = thread.wait();
      }
      ended = outcome.has_value();
      word = ended ? std::move(*outcome) : std::string(1, still_at_work);
    }
    outcomes.add(communicator.exchange(word, tag));
    outcomes.note_failures();
    if (outcomes.failed() && !ended) thread.cancel();
  } while (!outcomes.complete());
  return outcomes.finish(doing);
}

}  // namespace tessera::checkpoint
