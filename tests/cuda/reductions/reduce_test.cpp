// Reductions and running sums over the middle dimension.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::CumulativeSum;
using kernels::Reduce;
using kernels::ReduceOp;

struct ReducedShape {
  std::int64_t outer, reduced, inner;
};
// Rows and columns in one chunk, and in several.
constexpr ReducedShape reduced_shapes[] = {
    {3, 1, 1}, {2, 300, 1}, {2, 2500, 1}, {3, 40, 35}, {1, 1100, 3}};

TEST(CudaReduce, EveryShapeAndOperation) {
  for (const DType dtype : floating_dtypes) {
    for (const ReducedShape& s : reduced_shapes) {
      const auto n = static_cast<std::size_t>(s.outer * s.reduced * s.inner);
      ComparedArray x(random_values(n, dtype, 1), dtype);
      ComparedArray sums(s.outer * s.inner, dtype);
      TestContext context;
      run_on_all_sides<Reduce>(context, kernels::cuda::reduce, kernels::cpu::reduce, dtype,
                               [&](Side side, DType type) {
                                 return Reduce{ReduceOp::sum, x.at(side), sums.at(side), s.outer,
                                               s.reduced,     s.inner,    type,          0.5};
                               });
      sums.expect_within_bound("reduce", "sum");
      for (const ReduceOp op : {ReduceOp::maximum, ReduceOp::minimum}) {
        ComparedArray out(s.outer * s.inner, dtype);
        run_on_all_sides<Reduce>(context, kernels::cuda::reduce, kernels::cpu::reduce, dtype,
                                 [&](Side side, DType type) {
                                   return Reduce{op,        x.at(side), out.at(side), s.outer,
                                                 s.reduced, s.inner,    type};
                                 });
        out.expect_same("reduce", op == ReduceOp::maximum ? "maximum" : "minimum");
      }
    }
  }
}

TEST(CudaReduce, PlacesAreTheFirstAndNanWins) {
  for (const ReducedShape& s : reduced_shapes) {
    std::vector<double> values =
        random_values(static_cast<std::size_t>(s.outer * s.reduced * s.inner), float32, 2);
    for (double& value : values) value = std::round(value);
    if (values.size() > 100) values[60] = values[90] = std::nan("");
    MirroredArray x(values, float32);
    for (const ReduceOp op : {ReduceOp::argmax, ReduceOp::argmin}) {
      const auto results = static_cast<std::size_t>(s.outer * s.inner);
      const DeviceMemory places(results * sizeof(std::int64_t));
      std::vector<std::int64_t> wanted(results), got(results);
      TestContext context;
      kernels::cuda::reduce({op, x.device(), places.data(), s.outer, s.reduced, s.inner, float32},
                            context.queue());
      kernels::cpu::reduce({op, x.host(), wanted.data(), s.outer, s.reduced, s.inner, float32});
      context.synchronize();
      std::memcpy(got.data(), places.read().data(), results * sizeof(std::int64_t));
      EXPECT_EQ(got, wanted);
    }
  }
}

TEST(CudaReduce, RefusesTheLargestOfNothing) {
  const DeviceMemory x(16);
  TestContext context;
  EXPECT_THROW(kernels::cuda::reduce({ReduceOp::maximum, x.data(), x.data(), 1, 0, 1, float32},
                                     context.queue()),
               std::logic_error);
}

TEST(CudaCumulativeSum, EveryShapeInBothDirections) {
  for (const DType dtype : floating_dtypes) {
    for (const ReducedShape& s : reduced_shapes) {
      for (const bool reverse : {false, true}) {
        const std::int64_t n = s.outer * s.reduced * s.inner;
        ComparedArray x(random_values(static_cast<std::size_t>(n), dtype, 3), dtype);
        ComparedArray out(n, dtype);
        TestContext context;
        run_on_all_sides<CumulativeSum>(
            context, kernels::cuda::cumulative_sum, kernels::cpu::cumulative_sum, dtype,
            [&](Side side, DType type) {
              return CumulativeSum{x.at(side), out.at(side), s.outer, s.reduced,
                                   s.inner,    type,         reverse};
            });
        out.expect_within_bound("cumulative_sum", reverse ? "reverse" : "forward");
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
