// Device to kernel table.
#include "engine/launch.h"

#include "kernels/base/error.h"

namespace tessera {

const kernels::KernelTable& kernels_of(Device device) {
  TESSERA_REQUIRE(device.type == DeviceType::cpu, "no kernels for device {} in this build",
                  device.to_string());
  return kernels::cpu_kernels();
}

}  // namespace tessera
