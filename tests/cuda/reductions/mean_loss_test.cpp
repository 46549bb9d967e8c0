// The mean over the losses that are not ignored, on the GPU.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::MeanLoss;

constexpr std::int64_t ignored_target = -1;

// One in `every` targets is ignored; its loss is 0, as after cross-entropy.
void check(std::int64_t rows, std::int64_t every, DType dtype, DType target_dtype) {
  std::vector<double> values = random_values(static_cast<std::size_t>(rows), dtype, 1);
  std::vector<double> ids(values.size(), 5);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    if (row % static_cast<std::size_t>(every) != 0) continue;
    ids[row] = ignored_target;
    values[row] = 0;
  }
  ComparedArray losses(values, dtype), mean(1, dtype), inverse_count(1, float64);
  MirroredArray targets(ids, target_dtype);
  TestContext context;
  run_on_all_sides<MeanLoss>(context, kernels::cuda::mean_loss, kernels::cpu::mean_loss, dtype,
                             [&](Side side, DType type) -> MeanLoss {
                               return {losses.at(side),
                                       side == Side::device ? targets.device() : targets.host(),
                                       target_dtype,
                                       mean.at(side),
                                       static_cast<double*>(inverse_count.at(side)),
                                       rows,
                                       ignored_target,
                                       type};
                             });
  mean.expect_within_bound("mean_loss", "mean");
  inverse_count.expect_same("mean_loss", "inverse_count");
}

TEST(CudaMeanLoss, MatchesFp64) {
  for (const DType dtype : {float32, float64}) {
    for (const DType target_dtype : {int32, int64}) {
      for (const std::int64_t rows : {0, 1, 2, 1500}) check(rows, 3, dtype, target_dtype);
      check(40, 1, dtype, target_dtype);  // all are ignored
    }
  }
}

TEST(CudaMeanLoss, RefusesInvalidTypes) {
  TestContext context;
  const DeviceMemory memory(64);
  void* p = memory.data();
  EXPECT_THROW(kernels::cuda::mean_loss({p, p, float32, p, memory.as<double>(), 2, -1, float32},
                                        context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::mean_loss({p, p, int32, p, memory.as<double>(), 2, -1, bfloat16},
                                        context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
