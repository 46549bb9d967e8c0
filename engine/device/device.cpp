// Device names and the thread's default device.
#include "engine/device/device.h"

#include <fmt/format.h>

namespace tessera {
namespace {
thread_local Device thread_default_device;
}

std::string Device::to_string() const {
  switch (type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return fmt::format("cuda:{}", index);
    case DeviceType::meta:
      return "meta";
    case DeviceType::planned:
      return index == static_cast<int>(DeviceType::cuda) ? "planned cuda" : "planned cpu";
  }
  return "unknown";
}

Device default_device() {
  return thread_default_device;
}

void set_default_device(Device device) {
  thread_default_device = device;
}

DeviceGuard::DeviceGuard(Device device) : previous_(thread_default_device) {
  thread_default_device = device;
}

DeviceGuard::~DeviceGuard() {
  thread_default_device = previous_;
}

}  // namespace tessera
