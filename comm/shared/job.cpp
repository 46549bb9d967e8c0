// The job's shared block and its failure record.
#include "comm/shared/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <thread>

#include "base/error.h"
#include "comm/shared/device_parts.h"

namespace tessera::comm {

JobBlock* JobBlock::create(std::byte* memory, int size) {
  auto* block = new (memory) JobBlock;
  block->size = size;
  for (int rank = 0; rank < size; ++rank) new (&block->rank(rank)) JobRank;
  return block;
}

std::shared_ptr<Pulse> JobBlock::start_pulse(std::chrono::milliseconds limit) {
  if (size < 2) return nullptr;
  std::vector<RankPulse*> pulses;
  for (int index = 0; index < size; ++index) pulses.push_back(&rank(index).pulse);
  return std::make_shared<Pulse>(std::move(pulses), limit);
}

Job::Job(Parts parts)
    : parts_(std::move(parts)),
      may_spin_(sysconf(_SC_NPROCESSORS_ONLN) >= parts_.block->size),
      standstill_(parts_.around.watch
                      ? parts_.around.watch
                      : std::make_shared<StandstillWatch>(parts_.standstill_timeout)) {
  if (parts_.pulse) parts_.pulse->begin(parts_.rank, *standstill_);
}

// A rank that ends by an exception has not left normally: the others see it as dead when its
// process ends.
Job::~Job() {
  if (parts_.pulse) parts_.pulse->end(parts_.rank);
  if (std::uncaught_exceptions() == 0) leave();
}

Device Job::device() const {
  return parts_.device_parts ? parts_.device_parts->device() : Device::cpu();
}

std::string Job::name_of_rank(int rank) const {
  const std::int32_t pid = parts_.block->rank(rank).pid;
  const int number = number_of_rank(rank);
  if (parts_.watch == nullptr) return fmt::format("rank {} (a thread of pid {})", number, pid);
  return fmt::format("rank {} (pid {})", number, pid);
}

std::vector<int> Job::dead_ranks() const {
  if (parts_.watch == nullptr) return {};
  std::vector<int> dead = parts_.watch->ended();
  std::erase_if(dead, [this](int rank) { return has_left(rank); });
  return dead;
}

std::optional<std::string> Job::look_for_standstill(std::string_view call) {
  std::vector<const StandingRank*> present;
  for (int rank = 0; rank < size(); ++rank) {
    if (!has_left(rank)) present.push_back(&parts_.block->rank(rank).standing);
  }
  StandingRank& own = parts_.block->rank(parts_.rank).standing;
  if (!standstill_->all_stand(call, own, present)) return std::nullopt;
  return describe_standstill();
}

std::string Job::describe_standstill() const {
  std::map<std::string, std::string> ranks_by_calls;
  for (int rank = 0; rank < size(); ++rank) {
    if (has_left(rank)) continue;
    std::string& ranks = ranks_by_calls[parts_.block->rank(rank).standing.calls.get()];
    ranks += (ranks.empty() ? "" : ", ") + name_of_rank(rank);
  }
  std::string who;
  for (const auto& [calls, ranks] : ranks_by_calls) {
    who += fmt::format("{}{} in {}", who.empty() ? "" : "; ", ranks, calls);
  }
  return fmt::format(
      "all ranks wait for one another, and none has moved for {:.1f} s: {}; every rank must make "
      "the same calls in the same order",
      std::chrono::duration<double>(standstill_->limit()).count(), who);
}

std::optional<std::string> Job::look_for_stop(int rank, std::chrono::nanoseconds waited) const {
  if (parts_.pulse == nullptr) return std::nullopt;
  const JobRank& it = parts_.block->rank(rank);
  const std::chrono::milliseconds limit = standstill_->limit();
  const double seconds = std::chrono::duration<double>(limit).count();
  if (parts_.pulse->silence_of(rank) >= limit) {
    const char state = process_state(it.pid);
    return fmt::format(
        "{} has given no sign of life for {:.1f} s{}; {}; find out who stopped it, and start the "
        "job again (TESSERA_STANDSTILL_TIMEOUT=SECONDS waits longer)",
        name_of_rank(rank), seconds,
        state == 'T'   ? ": its process was stopped by a signal (SIGSTOP)"
        : state == 'D' ? ": its process hangs in the kernel"
                       : ": its process was stopped or gets no processor time",
        describe_last_call(rank));
  }
  if (it.pulse.still.load() < limit.count() || waited < limit) return std::nullopt;
  return fmt::format(
      "{} has stood still for {:.1f} s: none of its threads computes or waits for a disk, and its "
      "own thread {}; {}; see where it stands (gdb -p {}), or, when it waits for something outside "
      "of the job, say so (OutsideWait) or wait longer (TESSERA_STANDSTILL_TIMEOUT=SECONDS)",
      name_of_rank(rank), seconds, it.pulse.wait.get(), describe_last_call(rank), it.pid);
}

std::string Job::describe_last_call(int rank) const {
  const std::vector<HistoryEntry> entries = parts_.block->rank(rank).history.get();
  if (entries.empty()) return "it has made no call yet";
  const HistoryEntry& last = entries.back();
  return fmt::format("its last call was {} on '{}'", describe(last.call), last.channel_name.data());
}

std::string Job::describe_histories() const {
  std::vector<RankHistory> histories;
  for (int rank = 0; rank < size(); ++rank) {
    histories.push_back({number_of_rank(rank), parts_.block->rank(rank).history.get()});
  }
  return comm::describe_histories(histories);
}

void Job::record_failure(std::string_view text) noexcept {
  if (home_.left()) return;
  FailureRecord& failure = parts_.block->failure;
  std::uint32_t expected = FailureRecord::none;
  if (!failure.state.compare_exchange_strong(expected, FailureRecord::being_written)) return;
  const std::size_t length = text.copy(failure.text, sizeof(failure.text) - 1);
  failure.text[length] = '\0';
  failure.recorded_by = parts_.rank;
  failure.state.store(FailureRecord::written, std::memory_order_release);
  tell_failure(text);
}

void Job::tell_failure(std::string_view text) const noexcept {
  if (!parts_.around.tell_failure) return;
  try {
    parts_.around.tell_failure(text);
  } catch (const std::exception&) {
    // The other nodes notice that this rank ends.
  }
}

void Job::abort(std::string_view reason) noexcept {
  try {
    record_failure(fmt::format("{} gave up: {}", name_of_rank(rank()), reason));
  } catch (const std::bad_alloc&) {  // no memory for the whole sentence
    record_failure(reason);
  }
}

std::string Job::failure_text() const {
  const FailureRecord& failure = parts_.block->failure;
  // Writing takes microseconds, unless the writer was killed or stopped during it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (failure.state.load(std::memory_order_acquire) != FailureRecord::written) {
    if (std::chrono::steady_clock::now() > deadline) {
      return "another rank failed, and was stopped before it could say why";
    }
    std::this_thread::yield();
  }
  if (failure.recorded_by == parts_.rank) return failure.text;
  return fmt::format("{} [reported by rank {}]", failure.text, number_of_rank(failure.recorded_by));
}

void throw_failure(const Job& job, std::string_view where) {
  const std::string text = job.failure_text();
  // Must come before this rank ends: its end would look like the cause elsewhere.
  job.tell_failure(text);
  fail(ErrorCode::rank_failed, "rank {} in {}: {}", job.number_of_rank(job.rank()), where, text);
}

}  // namespace tessera::comm
