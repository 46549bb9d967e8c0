// Calls kernels on tensors: the kernel table and queue of a device, and a launch that skips `meta`
// tensors.
#pragma once

#include "engine/device/device.h"
#include "kernels/registry.h"

namespace tessera {

// The kernels of a device; throws a logic_error for `meta`.
const kernels::KernelTable& kernels_of(Device device);
// The queue argument of kernels on the device: the calling thread's current queue there.
kernels::Queue kernel_queue(Device device);

// During its lifetime, CPU launches of the calling thread use `table`, for measurements. The table
// must outlive the guard.
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
