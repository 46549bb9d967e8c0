// The gradient of every op, on the GPU: the cases are the CPU's.
#include "engine/gradient_cases.h"

namespace tessera::gradient_cases {
namespace {

class GradientCheck : public ::testing::TestWithParam<GradientCase> {
 protected:
  static void TearDownTestSuite() { testing::expect_every_op_was_reached(); }

 private:
  const DeviceGuard on_the_gpu_{Device::cuda()};
};
INSTANTIATE_TEST_SUITE_P(Gpu, GradientCheck, ::testing::ValuesIn(gradient_cases),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(GradientCheck, AgreesWithDifferences) {
  GetParam().check();
}

}  // namespace
}  // namespace tessera::gradient_cases
