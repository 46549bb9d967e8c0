// A GPU rounds weights to the CPU's values, bit for bit.
#include "engine/nn/weight_rounding.h"

#include <gtest/gtest.h>

#include "cuda/engine/engine_testing.h"
#include "engine/ops.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

TEST(WeightRoundingOnDevice, ValuesAreThoseOfTheCpu) {
  for (const WeightRounding rounding : {WeightRounding::q8_0, WeightRounding::q4_0}) {
    for (const DType dtype : {float32, bfloat16, float16}) {
      for (const double largest : {1e-7, 0.04, 3.0}) {
        const Tensor weight = cast(testing::values({48, 96}, 7, -largest, largest), dtype);
        EXPECT_EQ(round_to_blocks(weight.to(testing::gpu), rounding).to_vector(),
                  round_to_blocks(weight, rounding).to_vector())
            << name_of(dtype) << ' ' << largest;
      }
    }
  }
}

TEST(WeightRoundingOnDevice, GradientsPassThrough) {
  Tensor weight = cast(testing::values({4, 64}, 8, -1, 1), float32).to(testing::gpu);
  weight.set_requires_grad(true);
  const Tensor factor = cast(testing::values({4, 64}, 9, -1, 1), float32).to(testing::gpu);
  sum(round_to_blocks(weight, WeightRounding::q4_0) * factor).backward();
  EXPECT_EQ(weight.grad().to_vector(), factor.to_vector());
}

}  // namespace
}  // namespace tessera
