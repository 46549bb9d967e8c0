// Streams of the emulated device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "emulator/runtime/access_checker.h"
#include "emulator/runtime/launch.h"
#include "emulator/runtime/mark.h"
#include "emulator/runtime/operation_queue.h"

namespace tessera::emulator {

class Executor;

struct StreamOptions {
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
};

// Operations that run one after another. Any host thread may add; the executor decides when and on
// which thread the first one runs.
class Stream {
 public:
  // `name` lives as long as the program; executor and checker outlive the stream.
  Stream(const StreamOptions& options, const std::string* name, Executor& executor,
         AccessChecker& checker);
  // All added operations have finished, and no thread runs the stream any more.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Adds an operation that touches `accesses`.
  void enqueue(const char* what, std::span<const Access> accesses, std::function<void()> work);
  // Adds a mark that is reached when all operations before it have finished.
  MarkReference record();
  // Later operations wait for the mark.
  void wait(const MarkReference& mark);

  // True when all added operations have finished; the caller then knows their work.
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] std::uint32_t added() const { return added_.load(std::memory_order_relaxed); }

  [[nodiscard]] const StreamOptions& options() const { return options_; }
  [[nodiscard]] const std::string* name() const { return name_.load(std::memory_order_relaxed); }
  void set_name(const std::string* name) { name_.store(name, std::memory_order_relaxed); }
  // For a report: its name, the first operation and what that waits for.
  [[nodiscard]] std::string state() const;

  // For the executor, one thread at a time.
  // Runs the first operation if there is one and its mark is reached.
  bool advance();
  // The same, but sleeps until the mark is reached.
  bool advance_after_waiting();
  // The number of operations that ran, to watch progress.
  [[nodiscard]] std::uint32_t done() const { return done_.load(std::memory_order_relaxed); }
  // Changes with every addition and with stop(); read it before advance_after_waiting().
  [[nodiscard]] std::uint32_t changes() const;
  void sleep_while_unchanged(std::uint32_t changes) const;
  void wake() const;
  void stop();
  [[nodiscard]] bool stopped() const;

  // Events may still refer to the marks of a stream that ended.
  [[nodiscard]] std::unique_ptr<MarkPool> release_marks() { return std::move(marks_); }

 private:
  void add(std::unique_ptr<StreamOperation> operation);
  void finish(StreamOperation& operation);

  const StreamOptions options_;
  std::atomic<const std::string*> name_;
  Executor& executor_;
  AccessChecker& checker_;
  const Actor actor_;
  std::mutex producers_;
  std::unique_ptr<MarkPool> marks_ = std::make_unique<MarkPool>();
  OperationQueue queue_;
  std::atomic<std::uint32_t> added_{0};
  std::atomic<std::uint32_t> done_{0};
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<bool> stopped_{false};
  // For state(), which another thread than the stream's own calls.
  std::atomic<const char*> first_{nullptr};
  std::atomic<const std::string*> waits_for_{nullptr};
};

}  // namespace tessera::emulator
