// Streams and events. A stream is an in-order queue, an event a point in one.
//
// On the CPU the compute stream is the calling thread; every other stream is a worker thread, so
// that communication overlaps computation for real. The environment variable
// TESSERA_SERIAL_STREAMS=1 runs side streams' work on the caller at once: slower, the same bits,
// and easy to debug.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace tessera {

// A point in a stream. Copies share the point. A default-constructed event has already happened.
class Event {
 public:
  Event() = default;
  // Blocks until the point is reached; rethrows what the stream's work threw before it.
  void wait() const;
  [[nodiscard]] bool done() const;

 private:
  friend class Stream;
  struct State;
  [[nodiscard]] bool succeeded() const;  // done, and nothing was thrown
  std::shared_ptr<State> state_;
};

// A side stream. Work runs in the order of enqueue(), one at a time. After work has thrown, later
// work is skipped and every event recorded from then on carries that exception. Thread-safe.
class Stream {
 public:
  explicit Stream(std::string name);
  ~Stream();  // finishes what was enqueued
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Event enqueue(std::function<void()> work);
  // Later work on this stream waits for the event.
  void wait(const Event& event);
  // Runs on the stream and returns when done; rethrows.
  void run(std::function<void()> work) { enqueue(std::move(work)).wait(); }
  void synchronize();
  // Seconds this stream spent running work (waiting included) since it was made.
  [[nodiscard]] double busy_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
