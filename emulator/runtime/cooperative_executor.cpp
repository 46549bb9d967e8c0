// No threads: operations run inside the calls of the host, in an order that CUDA allows.
#include <algorithm>
#include <mutex>
#include <vector>

#include "emulator/runtime/executor.h"
#include "emulator/runtime/report.h"
#include "emulator/runtime/stream.h"
#include "emulator/scheduler/schedule.h"

namespace tessera::emulator {
namespace {

// inline: an operation runs when it is added; the operations that it waits for have run before.
// lazy: streams advance only while the host waits, in turn, oldest first, each as far as possible.
// seeded: every addition lets up to three random streams advance; a waiting host lets random ones
// advance until its mark is reached. The order repeats for the same seed and one host thread.
class CooperativeExecutor final : public Executor {
 public:
  CooperativeExecutor(const Settings& settings, Run run)
      : Executor(std::move(run)), schedule_(settings.schedule), random_(settings.seed) {}

  void start(Stream& stream) override {
    const std::lock_guard lock(mutex_);
    streams_.push_back(&stream);
  }

  void end(Stream& stream) override {
    run_soon(stream);
    const std::lock_guard lock(mutex_);
    streams_.erase(std::find(streams_.begin(), streams_.end(), &stream));
  }

  void added_to(Stream& stream) override {
    const std::lock_guard lock(mutex_);
    if (schedule_ == StreamSchedule::inlined) {
      while (stream.advance()) continue;
    } else if (schedule_ == StreamSchedule::seeded) {
      for (unsigned turns = random_.below(4); turns > 0; --turns) {
        streams_[random_.below(static_cast<unsigned>(streams_.size()))]->advance();
      }
    }
  }

  void wait(const Mark& mark) override {
    advance_until([&mark] { return mark.is_reached(); });
  }

  void poll() override {
    const std::lock_guard lock(mutex_);
    advance_any();
  }

  void run_soon(Stream& stream) override {
    advance_until([&stream] { return stream.is_idle(); });
  }

 private:
  template <class Condition>
  void advance_until(Condition condition) {
    while (!advance_unless(condition)) continue;
  }

  // One turn, so that other host threads may add and wait in between. Returns the condition.
  template <class Condition>
  bool advance_unless(Condition condition) {
    const std::lock_guard lock(mutex_);
    if (condition()) return true;
    if (advance_any()) return false;
    for (const Stream* stream : streams_) print_line("{}", stream->state());
    end_program("the host waits, and the streams are in a deadlock");
  }

  bool advance_any() {
    if (schedule_ == StreamSchedule::seeded) {
      for (std::size_t i = streams_.size(); i > 1; --i) {
        std::swap(streams_[i - 1], streams_[random_.below(static_cast<unsigned>(i))]);
      }
    }
    return std::any_of(streams_.begin(), streams_.end(),
                       [](Stream* stream) { return stream->advance(); });
  }

  const StreamSchedule schedule_;
  std::mutex mutex_;  // held while an operation runs
  std::vector<Stream*> streams_;
  Random random_;
};

}  // namespace

std::unique_ptr<Executor> make_cooperative_executor(const Settings& settings, Executor::Run run) {
  return std::make_unique<CooperativeExecutor>(settings, std::move(run));
}

std::unique_ptr<Executor> make_executor(const Settings& settings, Executor::Run run) {
  return settings.schedule == StreamSchedule::threads
             ? make_thread_executor(settings, std::move(run))
             : make_cooperative_executor(settings, std::move(run));
}

}  // namespace tessera::emulator
