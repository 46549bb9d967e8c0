// The thread's current queues.
#include "engine/device/queue.h"

#include <map>
#include <utility>

#include "engine/device/backend.h"

namespace tessera {
namespace {

struct ThreadQueue {
  std::unique_ptr<DeviceQueue> own;  // null until the thread needs one
  DeviceQueue* current = nullptr;
};

ThreadQueue& thread_queue(Device device) {
  thread_local std::map<std::pair<DeviceType, int>, ThreadQueue> queues;
  return queues[{device.type, device.index}];
}

}  // namespace

DeviceQueue& current_queue(Device device) {
  ThreadQueue& entry = thread_queue(device);
  if (entry.current == nullptr) {
    require_device(device);
    entry.own = backend_of(device.type).make_queue(device, "compute", QueuePriority::normal);
    entry.current = entry.own.get();
  }
  return *entry.current;
}

QueueGuard::QueueGuard(DeviceQueue& queue) : device_(queue.device()) {
  ThreadQueue& entry = thread_queue(device_);
  previous_ = entry.current;
  entry.current = &queue;
}

QueueGuard::~QueueGuard() {
  thread_queue(device_).current = previous_;
}

}  // namespace tessera
