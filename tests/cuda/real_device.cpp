// A real GPU: accesses are not checked, and NCCL needs one GPU per rank.
#include <fmt/format.h>

#include "cuda/device_under_test.h"
#include "engine/device/backend.h"

namespace tessera::testing {

AccessChecking::AccessChecking() = default;
AccessChecking::~AccessChecking() = default;

NcclUnderTest nccl_under_test(int ranks) {
  const cuda::NcclLibrary& library = cuda::nccl_library();
  if (!library.loaded) return {nullptr, library.text};
  const int devices = backend_of(DeviceType::cuda).device_count();
  if (ranks > devices) {
    return {nullptr, fmt::format("NCCL's {} ranks need a GPU each; GPUs here: {}", ranks, devices)};
  }
  return {&library.functions, {}};
}

Device nccl_device(int rank) {
  return Device::cuda(rank);
}

}  // namespace tessera::testing
