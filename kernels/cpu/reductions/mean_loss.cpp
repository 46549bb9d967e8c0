// The mean of the losses whose target counts.
#include "base/error.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class Target>
std::int64_t count_targets(const MeanLoss& a) {
  const auto* targets = static_cast<const Target*>(a.targets);
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < a.rows; ++row) counted += targets[row] != a.ignore ? 1 : 0;
  return counted;
}

}  // namespace

void cpu::mean_loss(const MeanLoss& a, Queue queue) {
  TESSERA_REQUIRE(a.target_dtype == int32 || a.target_dtype == int64,
                  "mean_loss: targets are {}; they must be int32 or int64",
                  name_of(a.target_dtype));
  TESSERA_REQUIRE(a.dtype == float32 || a.dtype == float64,
                  "mean_loss: losses are {}; they must be float32 or float64", name_of(a.dtype));
  const std::int64_t counted =
      a.target_dtype == int32 ? count_targets<std::int32_t>(a) : count_targets<std::int64_t>(a);
  *a.inverse_count = counted == 0 ? 0.0 : 1.0 / static_cast<double>(counted);
  // Ignored rows have a loss of 0, so the sum over all rows equals the sum over the counted ones.
  cpu::sum_all({a.losses, a.mean, a.rows, a.dtype, *a.inverse_count}, queue);
}

}  // namespace tessera::kernels
