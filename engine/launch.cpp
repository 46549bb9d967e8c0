// Device to kernel table and queue.
#include "engine/launch.h"

#include "engine/backend.h"

namespace tessera {

const kernels::KernelTable& kernels_of(Device device) {
  if (device.type == DeviceType::cpu) return kernels::cpu_kernels();
  return backend_of(device.type).kernels();
}

kernels::Queue kernel_queue(Device device) {
  if (device.type == DeviceType::cpu) return {};  // there is one queue, and nothing to look up
  return current_queue(device).native();
}

}  // namespace tessera
