// Queues: in-order lists of a device's work. Kernels and copies are put into a queue and run later;
// a point in a queue tells when it has come that far.
//
// On a GPU a queue is a CUDA stream and a point an event of it. On the CPU work runs on the calling
// thread before the call returns: there is one queue, and every point in it (null) has been
// reached.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "engine/device/device.h"
#include "kernels/registry.h"

namespace tessera {

// A point in a queue. Immutable; may be used by any thread.
class QueuePoint {
 public:
  virtual ~QueuePoint() = default;
  [[nodiscard]] virtual bool reached() const = 0;
  // The calling thread waits. Throws what went wrong on the device before the point.
  virtual void synchronize() const = 0;
  // Seconds of the device between an earlier point and this one; both were made by record_timed()
  // and have been reached.
  [[nodiscard]] virtual double seconds_since(const QueuePoint& earlier) const = 0;
};
using PointHandle = std::shared_ptr<const QueuePoint>;  // null: has been reached

// Used by one thread at a time.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  [[nodiscard]] virtual Device device() const = 0;
  // What kernels are called with.
  [[nodiscard]] virtual kernels::Queue native() = 0;

  [[nodiscard]] virtual PointHandle record() = 0;
  [[nodiscard]] virtual PointHandle record_timed() = 0;
  // Work that is put in from now on runs after the point. The calling thread goes on.
  virtual void wait(const PointHandle& point) = 0;
  // The calling thread waits for everything put in so far. Throws Error(data) for a bad id or
  // target that a kernel met, Error(runtime) for what went wrong on the device.
  virtual void synchronize() = 0;

  // Within the device's memory, in order with the queue's other work. No overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  // Host memory of any kind. copy_from_host returns when `from` may be changed again;
  // copy_to_host returns when the bytes are there, and throws like synchronize().
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  // Host memory of Backend::allocate_pinned, untouched by others until a point recorded after the
  // call has been reached. These return at once.
  virtual void enqueue_copy_from_pinned(void* to, const void* from, std::size_t bytes) = 0;
  virtual void enqueue_copy_to_pinned(void* to, const void* from, std::size_t bytes) = 0;
};

// The queue that the calling thread computes on: made on its first use of the device and kept for
// the thread, unless a QueueGuard says otherwise. An Error(configuration) where there is no such
// device.
DeviceQueue& current_queue(Device device);

// Makes `queue` the thread's current one for its device.
class QueueGuard {
 public:
  explicit QueueGuard(DeviceQueue& queue);
  ~QueueGuard();
  QueueGuard(const QueueGuard&) = delete;
  QueueGuard& operator=(const QueueGuard&) = delete;

 private:
  Device device_;
  DeviceQueue* previous_;
};

}  // namespace tessera
