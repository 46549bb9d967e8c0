// From tensors to kernels: the table and the queue of a device, and a launch that `meta` tensors
// skip.
#pragma once

#include "engine/device/device.h"
#include "kernels/registry.h"

namespace tessera {

// The kernels of a device; a logic_error for `meta`.
const kernels::KernelTable& kernels_of(Device device);
// What kernels on the device are called with: the calling thread's current queue there.
kernels::Queue kernel_queue(Device device);

// What the calling thread launches on the CPU goes through `table` instead, which outlives the
// guard: for measuring.
class KernelTableGuard {
 public:
  explicit KernelTableGuard(const kernels::KernelTable& table);
  ~KernelTableGuard();
  KernelTableGuard(const KernelTableGuard&) = delete;
  KernelTableGuard& operator=(const KernelTableGuard&) = delete;

 private:
  const kernels::KernelTable* previous_;
};

}  // namespace tessera

// TESSERA_LAUNCH(device, kernel, {arguments}): the arguments are not evaluated on `meta`, where
// tensors have no address.
#define TESSERA_LAUNCH(device, kernel, ...)                               \
  do {                                                                    \
    const ::tessera::Device tessera_device_ = (device);                   \
    if (!tessera_device_.is_meta()) {                                     \
      ::tessera::kernels_of(tessera_device_)                              \
          .kernel(__VA_ARGS__, ::tessera::kernel_queue(tessera_device_)); \
    }                                                                     \
  } while (false)
