// Results of attention compared with those of another implementation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/attention/attention_testing.h"

namespace tessera::testing {

// The root of the mean square of the difference, divided by that of the expected values. Elements
// between the rows must be untouched.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == AttentionProblem::untouched) {
      EXPECT_EQ(got[i], AttentionProblem::untouched) << "written between rows, element " << i;
      continue;
    }
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  return std::sqrt(difference / square);
}

// The results differ by the rounding of a 16-bit type.
inline void expect_near(DType dtype, const AttentionResults& got,
                        const AttentionResults& expected) {
  const double bound = dtype == bfloat16 ? 1e-2 : 2e-3;
  EXPECT_LT(relative_error(got.out, expected.out), bound);
  EXPECT_LT(relative_error(got.log_sum_exp, expected.log_sum_exp), 1e-5);
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_LT(relative_error(got.gradients[i], expected.gradients[i]), bound) << "gradient " << i;
  }
}

}  // namespace tessera::testing
