// Events and their pool.
#include "engine/cuda/point.h"

#include "base/error.h"
#include "engine/cuda/device.h"
#include "kernels/cuda/device/error.h"

namespace tessera::cuda {

const std::shared_ptr<EventPool>& EventPool::of(int device) {
  static const std::vector<std::shared_ptr<EventPool>> pools = [] {
    std::vector<std::shared_ptr<EventPool>> all;
    for (int i = 0; i < availability().count; ++i) all.push_back(std::make_shared<EventPool>(i));
    return all;
  }();
  return pools.at(static_cast<std::size_t>(device));
}

// At the end of the program the CUDA runtime and the events may be gone already.
EventPool::~EventPool() {
  for (const auto* events : {&plain_, &timed_}) {
    for (cudaEvent_t event : *events) (void)cudaEventDestroy(event);
  }
}

cudaEvent_t EventPool::take(bool timed) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<cudaEvent_t>& events = idle(timed);
    if (!events.empty()) {
      cudaEvent_t event = events.back();
      events.pop_back();
      return event;
    }
  }
  bind_thread(device_);
  cudaEvent_t event = nullptr;
  TESSERA_CUDA(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}

void EventPool::give_back(cudaEvent_t event, bool timed) {
  const std::lock_guard lock(mutex_);
  idle(timed).push_back(event);
}

Point::Point(std::shared_ptr<EventPool> pool, cudaStream_t stream, bool timed,
             std::shared_ptr<const FaultRecord> faults)
    : pool_(std::move(pool)),
      timed_(timed),
      faults_(std::move(faults)),
      event_(pool_->take(timed)) {
  bind_thread(pool_->device());
  const cudaError_t error = cudaEventRecord(event_, stream);
  if (error != cudaSuccess) {
    pool_->give_back(event_, timed_);  // no destructor runs
    kernels::cuda::fail_call(error, "cudaEventRecord(event, stream)", __FILE__, __LINE__);
  }
}

Point::~Point() {
  pool_->give_back(event_, timed_);
}

bool Point::reached() const {
  bind_thread(pool_->device());
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();  // otherwise the next launch would report this error as its own
    return false;
  }
  TESSERA_CUDA(error);
  return true;
}

void Point::synchronize() const {
  bind_thread(pool_->device());
  TESSERA_CUDA(cudaEventSynchronize(event_));
  faults_->check();
}

double Point::seconds_since(const QueuePoint& earlier) const {
  const auto* begin = dynamic_cast<const Point*>(&earlier);
  TESSERA_REQUIRE(begin != nullptr && begin->timed_ && timed_,
                  "seconds between points that record_timed() has not made");
  bind_thread(pool_->device());
  float milliseconds = 0;
  TESSERA_CUDA(cudaEventElapsedTime(&milliseconds, begin->event_, event_));
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace tessera::cuda
