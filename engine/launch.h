// From tensors to kernels: the table of a device, and a launch that `meta` tensors skip.
#pragma once

#include "engine/device.h"
#include "kernels/registry.h"

namespace tessera {

// The kernels of a device; a logic_error for one that this build has none for.
const kernels::KernelTable& kernels_of(Device device);

}  // namespace tessera

// TESSERA_LAUNCH(device, kernel, {arguments}): the arguments are not evaluated on `meta`, where
// tensors have no address.
#define TESSERA_LAUNCH(device, kernel, ...)                           \
  do {                                                                \
    const ::tessera::Device tessera_device_ = (device);               \
    if (!tessera_device_.is_meta()) {                                 \
      ::tessera::kernels_of(tessera_device_).kernel(__VA_ARGS__, {}); \
    }                                                                 \
  } while (false)
