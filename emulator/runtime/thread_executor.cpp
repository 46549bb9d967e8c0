// One thread per stream: independent operations run at the same time.
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "emulator/runtime/executor.h"
#include "emulator/runtime/parking.h"
#include "emulator/runtime/report.h"
#include "emulator/runtime/stream.h"

namespace tessera::emulator {
namespace {

void run_stream(Stream& stream) {
  for (;;) {
    // The order matters: after stopped() there are no additions, so an empty queue is then the end.
    const std::uint32_t changes = stream.changes();
    const bool stopped = stream.stopped();
    if (stream.advance_after_waiting()) continue;
    if (stopped) return;
    stream.sleep_while_unchanged(changes);
  }
}

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(const Settings& settings, Run run)
      : Executor(std::move(run)), timeout_(settings.timeout) {}

  void start(Stream& stream) override {
    const std::lock_guard lock(mutex_);
    workers_.emplace(&stream, std::thread([&stream] { run_stream(stream); }));
  }

  void end(Stream& stream) override {
    std::thread worker;
    {
      const std::lock_guard lock(mutex_);
      const auto found = workers_.find(&stream);
      worker = std::move(found->second);
      workers_.erase(found);
    }
    stream.stop();
    worker.join();
  }

  void added_to(Stream& stream) override { stream.wake(); }

  void wait(const Mark& mark) override {
    std::uint64_t progress = 0;
    auto since = std::chrono::steady_clock::now();
    while (!mark.is_reached()) {
      sleep_while(mark.reached, 0);
      const auto now = std::chrono::steady_clock::now();
      if (now - since < std::chrono::seconds(1)) continue;
      if (const std::uint64_t seen = operations_done(); seen != progress) {
        progress = seen;
        since = now;
      } else if (now - since > timeout_) {
        report_and_end(mark);
      }
    }
  }

  void poll() override { std::this_thread::yield(); }
  void run_soon(Stream& /*stream*/) override {}

 private:
  std::uint64_t operations_done() {
    const std::lock_guard lock(mutex_);
    std::uint64_t done = 0;
    for (const auto& [stream, worker] : workers_) done += stream->done();
    return done;
  }

  [[noreturn]] void report_and_end(const Mark& mark) {
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, worker] : workers_) print_line("{}", stream->state());
    end_program(
        "no operation of any stream ended for {} s while the host waits for stream {}: a "
        "host function or a kernel does not return",
        timeout_.count(), *mark.name());
  }

  const std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::map<Stream*, std::thread> workers_;
};

}  // namespace

std::unique_ptr<Executor> make_thread_executor(const Settings& settings, Executor::Run run) {
  return std::make_unique<ThreadExecutor>(settings, std::move(run));
}

}  // namespace tessera::emulator
