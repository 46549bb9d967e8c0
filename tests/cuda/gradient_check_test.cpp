// The gradient of every op, on the GPU: the cases are the CPU's.
#include "engine/gradient_cases.h"

namespace tessera {
namespace {

class OnTheGpu final : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("TESSERA_CUDA_MEMORY", "64M", 0);
    set_default_device(Device::cuda());
  }
};
[[maybe_unused]] const ::testing::Environment* const on_the_gpu =
    ::testing::AddGlobalTestEnvironment(new OnTheGpu);  // gtest owns it

}  // namespace
}  // namespace tessera
