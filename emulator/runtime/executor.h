// Executors run the operations of streams. The program has one executor; the environment selects it
// (settings.h).
#pragma once

#include <functional>
#include <memory>

#include "emulator/runtime/mark.h"
#include "emulator/runtime/operation_queue.h"
#include "emulator/runtime/settings.h"

namespace tessera::emulator {

class Stream;

class Executor {
 public:
  virtual ~Executor() = default;

  virtual void start(Stream& stream) = 0;
  // Waits for all added operations; afterwards no thread runs the stream.
  virtual void end(Stream& stream) = 0;
  // An operation was added.
  virtual void added_to(Stream& stream) = 0;
  // The host waits for a mark. Ends the program with a report if the mark cannot be reached.
  virtual void wait(const Mark& mark) = 0;
  // The host polls whether an operation has finished: the executor must make some progress.
  virtual void poll() = 0;
  // The host may wait, in ways that the emulator does not see, for operations of the stream.
  virtual void run_soon(Stream& stream) = 0;

  // Runs an operation's work on this thread. The function given here handles exceptions of the
  // work, and skips work when the device has failed.
  using Run = std::function<void(const Stream&, StreamOperation&)>;
  explicit Executor(Run run) : run_(std::move(run)) {}
  void run(const Stream& stream, StreamOperation& operation) const { run_(stream, operation); }

 private:
  Run run_;
};

std::unique_ptr<Executor> make_executor(const Settings& settings, Executor::Run run);
std::unique_ptr<Executor> make_thread_executor(const Settings& settings, Executor::Run run);
std::unique_ptr<Executor> make_cooperative_executor(const Settings& settings, Executor::Run run);

}  // namespace tessera::emulator
