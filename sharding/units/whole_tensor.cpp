// Moves whole tensors to a rank's device.
#include "sharding/units/whole_tensor.h"

#include <memory>

#include "base/error.h"
#include "engine/device/memory_kind.h"

namespace tessera {

Tensor whole_on(Device device, const Tensor& source, const std::string& what, const char* maker) {
  const MemoryScope kind(MemoryKind::parameters);
  Tensor tensor;
  if (source.is_meta()) {
    const std::shared_ptr<Initializer>& initializer = source.impl()->initializer;
    TESSERA_REQUIRE(initializer != nullptr,
                    "{} is on `meta` and has no initializer; make it with {}", what, maker);
    tensor = Tensor::empty(source.shape(), source.dtype(), device);
    initializer->fill(tensor.raw_data(), tensor.dtype(), 0, tensor.elements(), device);
    tensor.impl()->initializer = initializer;
  } else {
    tensor = source.to(device);
  }
  if (tensor.impl() != source.impl()) tensor.set_requires_grad(source.requires_grad());
  return tensor;
}

}  // namespace tessera
