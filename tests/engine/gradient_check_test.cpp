// The gradient of every op, on the CPU.
#include "engine/gradient_cases.h"

namespace tessera::gradient_cases {
namespace {

class GradientCheck : public ::testing::TestWithParam<GradientCase> {
 protected:
  static void TearDownTestSuite() { testing::expect_every_op_was_reached(); }
};
INSTANTIATE_TEST_SUITE_P(Cpu, GradientCheck, ::testing::ValuesIn(gradient_cases),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(GradientCheck, AgreesWithDifferences) {
  GetParam().check();
}

}  // namespace
}  // namespace tessera::gradient_cases
