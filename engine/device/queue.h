// Queues: in-order lists of a device's work. Kernels and copies are enqueued and run later; a point
// in a queue tells when the work before it is done.
//
// On a GPU a queue is a CUDA stream and a point is an event of it. On the CPU work runs on the
// calling thread before the call returns: there is one queue, and every point in it (null) has been
// reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/dtype.h"
#include "engine/device/device.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/registry.h"

namespace tessera {

// A point in a queue. Immutable; may be used by any thread.
class QueuePoint {
 public:
  virtual ~QueuePoint() = default;
  [[nodiscard]] virtual bool reached() const = 0;
  // The calling thread waits. Throws errors of the device from before the point.
  virtual void synchronize() const = 0;
  // Device time in seconds from an earlier point to this one. record_timed() must have made both,
  // and both must have been reached.
  [[nodiscard]] virtual double seconds_since(const QueuePoint& earlier) const = 0;
};
using PointHandle = std::shared_ptr<const QueuePoint>;  // null: already reached

// Work that a program enqueues with kernels of its own (engine/interop/own_op.h), as it declares
// it.
struct OwnWork {
  std::string_view name;
  DType dtype = DType::float32;  // in which the operations are done
  double operations = 0;         // multiplications and additions
  double bytes = 0;              // that must move
};

// One thread at a time may use a queue.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  [[nodiscard]] virtual Device device() const = 0;
  // The queue argument of kernels.
  [[nodiscard]] virtual kernels::Queue native() = 0;

  [[nodiscard]] virtual PointHandle record() = 0;
  [[nodiscard]] virtual PointHandle record_timed() = 0;
  // Work enqueued from now on runs after the point. The calling thread continues.
  virtual void wait(const PointHandle& point) = 0;
  // The calling thread waits for all enqueued work. Throws Error(data) for a bad id or target that
  // a kernel found, Error(runtime) for errors of the device.
  virtual void synchronize() = 0;

  // Within the device's memory, in order with the queue's other work. The ranges must not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  // For any host memory. copy_from_host returns when `from` may be changed again; copy_to_host
  // returns when the bytes have arrived, and throws like synchronize().
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  // For host memory of Backend::allocate_pinned. Others must not touch it until a point recorded
  // after the call has been reached. These return at once.
  virtual void enqueue_copy_from_pinned(void* to, const void* from, std::size_t bytes) = 0;
  virtual void enqueue_copy_to_pinned(void* to, const void* from, std::size_t bytes) = 0;

  // The matrix products that were enqueued so far. Only a GPU's queue counts them.
  [[nodiscard]] virtual kernels::ProductCounts products() const { return {}; }
  // The calls of attention, forward and backward, that were enqueued so far. Counted as products.
  [[nodiscard]] virtual kernels::AttentionCounts attention() const { return {}; }

  // Calls `enqueue` with the cudaStream_t of a GPU's queue, null on the CPU, and checks that what
  // it launched has started: Error(runtime) with the name otherwise. A planned queue notes the work
  // and calls nothing.
  virtual void run_own(const OwnWork& work, const std::function<void(void* stream)>& enqueue) = 0;
};

// A device with free resources begins work of high priority first. Collectives have it: their
// blocks of threads must not wait for the end of a large kernel, because other ranks wait for them.
enum class QueuePriority : std::uint8_t { normal, high };

// The calling thread's queue for computation: made on its first use of the device and kept for the
// thread, unless a QueueGuard sets another one. Throws Error(configuration) if the device does not
// exist.
DeviceQueue& current_queue(Device device);

// Makes `queue` the thread's current one for its device during the guard's lifetime.
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
