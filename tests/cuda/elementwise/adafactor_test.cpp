// Adafactor's step on the GPU has the CPU's bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

std::vector<double> moments_of(std::int64_t count, DType dtype, unsigned seed) {
  std::vector<double> values = random_values(static_cast<std::size_t>(count), dtype, seed);
  for (double& value : values) value = std::abs(value);
  if (!values.empty()) values[0] = 0;
  return values;
}

// n elements from `first` on of matrices [3, rows, columns], or of a vector.
struct AdafactorArrays {
  std::int64_t first, n, rows, columns;
  bool is_matrix;
  MirroredArray grad, row_factors, column_var, variance, direction, param, totals;

  AdafactorArrays(std::int64_t from, std::int64_t count, std::int64_t r, std::int64_t c,
                  bool matrix, DType dtype, DType grad_dtype, std::size_t offset)
      : first(from),
        n(count),
        rows(r),
        columns(c),
        is_matrix(matrix),
        grad(random_values(static_cast<std::size_t>(count), grad_dtype, 1), grad_dtype, offset),
        row_factors(moments_of(3 * r, dtype, 2), dtype),
        column_var(moments_of(3 * c, dtype, 3), dtype),
        variance(moments_of(count, dtype, 4), dtype, offset),
        direction(std::vector<double>(static_cast<std::size_t>(count)), dtype),
        param(random_values(static_cast<std::size_t>(count), dtype, 5), dtype, offset),
        totals(std::vector<double>{7.0, 4000.0}, float64) {}

  kernels::AdafactorStep call(bool device) {
    const auto memory = [&](MirroredArray& array) {
      return device ? array.device() : array.host();
    };
    const auto* const sums = static_cast<const double*>(memory(totals));
    return {.grad = memory(grad),
            .row_factors = is_matrix ? memory(row_factors) : nullptr,
            .column_var = is_matrix ? memory(column_var) : nullptr,
            .variance = is_matrix ? nullptr : memory(variance),
            .direction = memory(direction),
            .param = memory(param),
            .param_total = sums,
            .direction_total = sums + 1,
            .first = first,
            .n = n,
            .rows = rows,
            .columns = columns,
            .dtype = param.dtype(),
            .grad_dtype = grad.dtype(),
            .grad_scale = 0.3f,
            .weight = 0.4,
            .eps = 1e-3,
            .rate = 0.03,
            .decay = 0.01,
            .least_scale = 1e-3,
            .clip_threshold = 1.25,
            .size = 300};
  }
  // Both passes of a step, twice.
  void run_on_both() {
    TestContext context;
    for (int step = 0; step < 2; ++step) {
      for (const bool device : {true, false}) {
        kernels::AdafactorStep first_pass = call(device), second_pass = call(device);
        first_pass.param = nullptr;
        second_pass.direction = nullptr;
        second_pass.weight = 0;
        for (const kernels::AdafactorStep& pass : {first_pass, second_pass}) {
          if (device) {
            kernels::cuda::adafactor_step(pass, context.queue());
          } else {
            kernels::cpu::adafactor_step(pass);
          }
        }
      }
    }
    context.synchronize();
  }
  void expect_same() const {
    for (const MirroredArray* array : {&variance, &direction, &param})
      array->expect_same("adafactor_step", "step");
  }
};

TEST(CudaAdafactor, HasTheBitsOfTheCpu) {
  struct Types {
    DType dtype, grad;
  };
  for (const Types types : {Types{float32, float32},
                            {float32, bfloat16},
                            {float32, float16},
                            {float64, float64},
                            {float64, bfloat16}}) {
    for (const std::size_t offset : array_offsets) {
      for (const std::size_t n : array_lengths) {
        for (const bool matrix : {true, false}) {
          AdafactorArrays arrays(77, static_cast<std::int64_t>(n), 11, 37, matrix, types.dtype,
                                 types.grad, offset);
          arrays.run_on_both();
          arrays.expect_same();
        }
      }
    }
  }
}

TEST(CudaAdafactor, RefusesTypes) {
  TestContext context;
  AdafactorArrays arrays(0, 8, 2, 4, true, float32, float32, 0);
  kernels::AdafactorStep step = arrays.call(true);
  step.grad_dtype = float64;
  EXPECT_THROW(kernels::cuda::adafactor_step(step, context.queue()), std::logic_error);
  step.grad_dtype = float32;
  step.dtype = bfloat16;
  EXPECT_THROW(kernels::cuda::adafactor_step(step, context.queue()), std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
