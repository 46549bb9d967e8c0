// The gradient of every op, on the CPU.
#include "engine/tensor_op_gradients_test.h"

namespace tessera {

Device gradient_cases::checked_device() {
  return Device::cpu();
}

std::size_t gradient_cases::checked_elements() {
  return 0;
}

}  // namespace tessera
