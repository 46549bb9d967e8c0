// The cuda* functions of events.
#include <mutex>

#include "emulator/cuda/api.h"
#include "emulator/cuda/drop_waits.h"

namespace api = tessera::emulator::api;
using tessera::emulator::MarkReference;
using tessera::emulator::runtime;
using tessera::emulator::Stream;

// The target of an event's handle. An event that is recorded again refers to the new mark; earlier
// waits still wait for the old one. Waiting for an event that was never recorded has no effect.
struct CUevent_st {
 public:
  CUevent_st(int of_device, unsigned with_flags) : device(of_device), flags(with_flags) {}

  MarkReference last_record() const {
    const std::lock_guard lock(mutex_);
    return mark_;
  }
  void set_record(MarkReference recorded) {
    const std::lock_guard lock(mutex_);
    mark_ = std::move(recorded);
  }

  const int device;
  const unsigned flags;

 private:
  mutable std::mutex mutex_;
  MarkReference mark_;
};

namespace {

CUevent_st& event_of(cudaEvent_t event) {
  api::require(event != nullptr, cudaErrorInvalidResourceHandle, "the event is null");
  return *event;
}

void create(cudaEvent_t* event, unsigned flags) {
  api::require(event != nullptr, cudaErrorInvalidValue, "null");
  constexpr unsigned known = cudaEventBlockingSync | cudaEventDisableTiming;
  api::require((flags & ~known) == 0, cudaErrorNotSupported,
               "the emulator has no events with flags {:#x}", flags);
  *event = std::make_unique<CUevent_st>(api::this_thread().device, flags).release();
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return api::call("cudaEventCreate", [&] { create(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api::call("cudaEventCreateWithFlags", [&] { create(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api::call("cudaEventDestroy",
                   [&] { const std::unique_ptr<CUevent_st> destroyed(&event_of(event)); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return api::call("cudaEventRecord", [&] {
    CUevent_st& recorded = event_of(event);
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    api::require(recorded.device == stream->options().device, cudaErrorInvalidResourceHandle,
                 "the event is of device {}, stream {} of device {}", recorded.device,
                 *stream->name(), stream->options().device);
    recorded.set_record(stream->record());
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  return api::call("cudaStreamWaitEvent", [&] {
    api::require(flags == cudaEventWaitDefault, cudaErrorInvalidValue, "flags {:#x}", flags);
    const MarkReference mark = event_of(event).last_record();
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    if (!mark || tessera::emulator::drops_wait(*stream->name(), *mark->name())) return;
    stream->wait(mark);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api::call("cudaEventSynchronize", [&] {
    if (const MarkReference mark = event_of(event).last_record()) runtime().wait(mark);
    api::require_working_device();  // earlier work may have failed
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api::call("cudaEventQuery", [&] {
    const MarkReference mark = event_of(event).last_record();
    if (!mark) return;
    if (!mark->is_reached()) {
      runtime().executor().poll();
      throw api::Failure{cudaErrorNotReady};
    }
    runtime().wait(mark);  // the host now knows the earlier work
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api::call("cudaEventElapsedTime", [&] {
    api::require(milliseconds != nullptr, cudaErrorInvalidValue, "null");
    const MarkReference first = event_of(start).last_record();
    const MarkReference second = event_of(end).last_record();
    const bool timed = ((start->flags | end->flags) & cudaEventDisableTiming) == 0;
    api::require(timed, cudaErrorInvalidResourceHandle, "an event was created without timing");
    api::require(first && second, cudaErrorInvalidResourceHandle, "an event was never recorded");
    if (!first->is_reached() || !second->is_reached()) throw api::Failure{cudaErrorNotReady};
    *milliseconds = static_cast<float>(second->time.load(std::memory_order_relaxed) -
                                       first->time.load(std::memory_order_relaxed));
  });
}

}  // extern "C"
