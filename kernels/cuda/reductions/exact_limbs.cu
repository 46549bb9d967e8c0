// Exact sums as numbers that an all-reduce adds, and back.
#include <cmath>
#include <limits>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int limb_threads = 128;
constexpr int limb_bias = 1088;  // limb l weighs 2^(32 * l - bias)
static_assert(ExactSum::limbs <= limb_threads);

// sums: [n]; numbers: [n, limbs]. A block for each sum.
__global__ void exact_limbs_kernel(const ExactSum* sums, double* numbers) {
  const int limb = static_cast<int>(threadIdx.x);
  if (limb >= ExactSum::limbs) return;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  numbers[row * ExactSum::limbs + limb] = sums[row].non_finite
                                              ? std::numeric_limits<double>::quiet_NaN()
                                              : static_cast<double>(sums[row].limb.data()[limb]);
}

// numbers: [n, limbs]; totals: [n]. A thread for each total.
__global__ void exact_totals_kernel(const double* numbers, double* totals, std::int64_t n) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * limb_threads + static_cast<std::int64_t>(threadIdx.x);
  if (row >= n) return;
  double total = 0;
  for (int l = ExactSum::limbs - 1; l >= 0; --l) {
    total = total + ldexp(numbers[row * ExactSum::limbs + l], 32 * l - limb_bias);
  }
  totals[row] = total;
}

}  // namespace

void exact_limbs(const ExactLimbs& a, Queue queue) {
  launch(context_of(queue),
         {"exact_limbs",
          {a.n},
          {reads(a.sums, a.n * static_cast<std::int64_t>(sizeof(ExactSum))),
           writes(a.numbers, a.n * ExactSum::limbs * 8)}},
         {static_cast<unsigned>(a.n), limb_threads}, exact_limbs_kernel, a.sums, a.numbers);
}

void exact_totals(const ExactTotals& a, Queue queue) {
  launch(context_of(queue),
         {"exact_totals",
          {a.n},
          {reads(a.numbers, a.n * ExactSum::limbs * 8), writes(a.totals, a.n * 8)}},
         {blocks_for(a.n, limb_threads), limb_threads}, exact_totals_kernel, a.numbers, a.totals,
         a.n);
}

}  // namespace tessera::kernels::cuda
