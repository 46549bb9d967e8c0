// Points of a CUDA stream: events, which are reused.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "engine/cuda/fault_record.h"
#include "engine/device/queue.h"

namespace tessera::cuda {

// Events of one device that no point uses. Thread-safe.
class EventPool {
 public:
  // The device's pool; one per process.
  static const std::shared_ptr<EventPool>& of(int device);

  explicit EventPool(int device) : device_(device) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  [[nodiscard]] int device() const { return device_; }
  cudaEvent_t take(bool timed);
  void give_back(cudaEvent_t event, bool timed);

 private:
  std::vector<cudaEvent_t>& idle(bool timed) { return timed ? timed_ : plain_; }

  const int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> plain_;
  std::vector<cudaEvent_t> timed_;
};

// The event returns to its pool with the last handle. CUDA has already resolved it in the calls
// that wait for it, so recording it again does not disturb them.
class Point final : public QueuePoint {
 public:
  // Records the end of the work that `stream` has now.
  Point(std::shared_ptr<EventPool> pool, cudaStream_t stream, bool timed,
        std::shared_ptr<const FaultRecord> faults);
  ~Point() override;
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  [[nodiscard]] bool reached() const override;
  void synchronize() const override;
  [[nodiscard]] double seconds_since(const QueuePoint& earlier) const override;

  [[nodiscard]] cudaEvent_t event() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  bool timed_;
  std::shared_ptr<const FaultRecord> faults_;
  cudaEvent_t event_;
};

}  // namespace tessera::cuda
