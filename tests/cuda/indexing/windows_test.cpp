// unfold and fold on a GPU: the CPU's bits.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::WindowShape;

TEST(CudaWindows, HaveTheBitsOfTheCpu) {
  const WindowShape shapes[] = {{.planes = 5,
                                 .size = {9, 7},
                                 .kernel = {3, 2},
                                 .stride = {2, 1},
                                 .padding = {1, 2},
                                 .dilation = {1, 2},
                                 .out = {5, 9}},
                                {.planes = 3,
                                 .size = {1, 40},
                                 .kernel = {1, 5},
                                 .stride = {1, 3},
                                 .padding = {0, 2},
                                 .dilation = {1, 1},
                                 .out = {1, 14}},
                                {.planes = 2,
                                 .size = {8, 8},
                                 .kernel = {4, 4},
                                 .stride = {4, 4},
                                 .padding = {0, 0},
                                 .dilation = {1, 1},
                                 .out = {2, 2}}};
  for (const WindowShape& s : shapes) {
    for (const DType dtype : floating_dtypes) {
      TestContext context;
      MirroredArray x(random_values(s.elements(), dtype, 1), dtype, 1);
      MirroredArray columns(std::vector<double>(static_cast<std::size_t>(s.columns()), 9), dtype,
                            1);
      kernels::cuda::unfold({s, x.device(), columns.device(), dtype}, context.queue());
      kernels::cpu::unfold({s, x.host(), columns.host(), dtype});
      columns.expect_same("unfold", "columns");
      MirroredArray gradients(random_values(s.columns(), dtype, 2), dtype, 1);
      for (const bool accumulate : {false, true}) {
        kernels::cuda::fold({s, gradients.device(), x.device(), dtype, accumulate},
                            context.queue());
        kernels::cpu::fold({s, gradients.host(), x.host(), dtype, accumulate});
        x.expect_same("fold", accumulate ? "added to" : "written");
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
