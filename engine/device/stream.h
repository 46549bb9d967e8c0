// Streams and events. A stream is an in-order list of work beside the rank's own thread, an event a
// point in one.
//
// A side stream is a worker thread, so that communication overlaps computation for real. On a GPU
// the worker has a queue of its own (engine/device/queue.h) as well: work is a host function that
// puts kernels and copies into it, and an event is the function's end and the point that the queue
// had then. The environment variable TESSERA_SERIAL_STREAMS=1 runs side streams' work on the
// caller, on the caller's queue, and waits for the device: slower, the same bits, and easy to
// debug.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/queue.h"

namespace tessera {

// A point in a stream. Copies share the point. A default-constructed event has already happened.
class Event {
 public:
  Event() = default;
  // Blocks until the point is reached, on the device too; rethrows what the stream's work threw
  // before it.
  void wait() const;
  // Blocks until the stream's worker has come to the point (and rethrows); what the device still
  // has to do is waited for by the calling thread's current queue, not by the thread. On the CPU
  // the same as wait().
  void join() const;
  // Reached, on the device too.
  [[nodiscard]] bool done() const;
  // The same, and nothing was thrown before it: whoever would wait or join has nothing to do.
  [[nodiscard]] bool succeeded() const;

 private:
  friend class Stream;
  friend class StallClock;
  struct State;
  std::shared_ptr<State> state_;
};

// A side stream. Work runs in the order of enqueue(), one at a time, and after everything that the
// enqueuing thread had put into its current queue of the stream's device. After work has thrown,
// later work is skipped and every event recorded from then on carries that exception. Thread-safe.
class Stream {
 public:
  // Work uses `device`: the worker's current queue there is the stream's own.
  explicit Stream(std::string name, Device device = Device::cpu());
  ~Stream();  // finishes what was enqueued, on the device too
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Event enqueue(std::function<void()> work);
  // One behind the other, for one waking of the worker: the points at the end of each.
  struct Two {
    Event first, second;
  };
  Two enqueue(std::function<void()> first, std::function<void()> second);
  // Later work on this stream waits for the event.
  void wait(const Event& event);
  // Runs on the stream and returns when done; rethrows.
  void run(std::function<void()> work) { enqueue(std::move(work)).wait(); }
  // The same, but what the work throws is the caller's alone: later work is not skipped for it.
  void attempt(std::function<void()> work);
  void synchronize();
  // Whether its work runs on whoever enqueues it.
  [[nodiscard]] bool is_serial() const;
  // Seconds this stream spent running work (waiting included) since it was made: the worker's, or
  // on a GPU those of its queue, as far as the work is done.
  [[nodiscard]] double busy_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Joins events and measures how long the compute stream stands still for them: the thread on the
// CPU, the thread and its queue on a GPU. Used by one thread.
class StallClock {
 public:
  explicit StallClock(Device device = Device::cpu()) : device_(device) {}
  void join(const Event& event);
  // So far; on a GPU the calling thread waits for the last join.
  [[nodiscard]] double seconds() const;

 private:
  struct Pair {
    PointHandle before, after;
  };
  Device device_;
  double thread_seconds_ = 0;
  mutable double queue_seconds_ = 0;
  mutable std::vector<Pair> pending_;
};

}  // namespace tessera
