// Exact sums as numbers that an all-reduce adds, and back.
#include <cmath>
#include <limits>

#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

constexpr int exact_limb_bias = 1088;  // limb l weighs 2^(32 * l - bias)

}  // namespace

void cpu::exact_limbs(const ExactLimbs& a, Queue) {
  for (std::int64_t i = 0; i < a.n; ++i) {
    const ExactSum& sum = a.sums[i];
    double* const row = a.numbers + i * ExactSum::limbs;
    for (int l = 0; l < ExactSum::limbs; ++l) {
      row[l] = sum.non_finite ? std::numeric_limits<double>::quiet_NaN()
                              : static_cast<double>(sum.limb[static_cast<std::size_t>(l)]);
    }
  }
}

void cpu::exact_totals(const ExactTotals& a, Queue) {
  for (std::int64_t i = 0; i < a.n; ++i) {
    const double* const row = a.numbers + i * ExactSum::limbs;
    double total = 0;
    for (int l = ExactSum::limbs - 1; l >= 0; --l) {
      total += std::ldexp(row[l], 32 * l - exact_limb_bias);
    }
    a.totals[i] = total;
  }
}

}  // namespace tessera::kernels
