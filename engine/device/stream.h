// Streams and events. A stream is an in-order list of work beside the rank's own thread; an event
// is a point in a stream.
//
// A side stream is a worker thread, so communication really overlaps computation. On a GPU the
// worker also has its own queue (engine/device/queue.h): work is a host function that enqueues
// kernels and copies there, and an event is the function's end together with the queue's point at
// that time. With the environment variable TESSERA_SERIAL_STREAMS=1, side streams run their work on
// the caller, on the caller's queue, and wait for the device: slower, the same bits, and easy to
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
  // Blocks until the point is reached, also on the device; rethrows exceptions of the stream's work
  // before it.
  void wait() const;
  // Blocks until the stream's worker has reached the point (and rethrows). The calling thread's
  // current queue, not the thread, waits for the remaining work of the device. On the CPU the same
  // as wait().
  void join() const;
  // True if the point is reached, also on the device.
  [[nodiscard]] bool done() const;
  // True if done() and no work before it threw: wait() and join() would return at once.
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
  ~Stream();  // finishes the enqueued work, also on the device
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Event enqueue(std::function<void()> work);
  // Enqueues two pieces of work but wakes the worker once; returns the points at the end of each.
  struct Two {
    Event first, second;
  };
  Two enqueue(std::function<void()> first, std::function<void()> second);
  // Later work on this stream waits for the event.
  void wait(const Event& event);
  // Runs on the stream and returns when done; rethrows.
  void run(std::function<void()> work) { enqueue(std::move(work)).wait(); }
  // Like run(), but the stream does not keep an exception of the work: later work still runs.
  void attempt(std::function<void()> work);
  void synchronize();
  // True if the work runs on the calling thread of enqueue().
  [[nodiscard]] bool is_serial() const;
  // Seconds that this stream has spent on work (waiting included) since its creation: of the
  // worker, or on a GPU of its queue, for finished work.
  [[nodiscard]] double busy_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Joins events and measures how long the compute stream stalls for them: the thread on the CPU, the
// queue on a GPU. Used by one thread.
class StallClock {
 public:
  explicit StallClock(Device device = Device::cpu()) : device_(device) {}
  void join(const Event& event);
  // The same for other work that the thread or its current queue does while it computes nothing.
  void run(const std::function<void()>& work);
  // The time so far; on a GPU the calling thread waits for the last join.
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
