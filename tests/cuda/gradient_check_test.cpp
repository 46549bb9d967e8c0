// The gradient of every op, on the GPU: the cases are the CPU's.
#include <cstdlib>

#include "engine/gradient_check_test.h"

namespace tessera {

Device gradient_cases::checked_device() {
  setenv("TESSERA_CUDA_MEMORY", "64M", 0);
  return Device::cuda();
}

}  // namespace tessera
