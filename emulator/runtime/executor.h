// Who runs the operations of streams, and when. There is one executor for the program; which one is
// the environment's choice (settings.h).
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
  // Waits for everything that was added; afterwards no thread runs the stream.
  virtual void end(Stream& stream) = 0;
  // An operation was added.
  virtual void added_to(Stream& stream) = 0;
  // The host waits for a mark. Ends the program with a report if it cannot be reached.
  virtual void wait(const Mark& mark) = 0;
  // The host asks again and again whether something is done: some progress must be made.
  virtual void poll() = 0;
  // The host may come to wait, in ways that are not seen here, for what was added to the stream.
  virtual void run_soon(Stream& stream) = 0;

  // Runs the operation's work on this thread. What it throws, and what must not run because the
  // device has failed before, is the concern of the function given here.
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
