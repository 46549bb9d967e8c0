// Softmax cross-entropy on the GPU, compared with the CPU's fp64, and its error reports.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::CrossEntropyBackward;
using kernels::CrossEntropyForward;
using kernels::cuda::Fault;

struct CrossEntropyCase {
  std::int64_t rows, vocabulary;
  std::int64_t padding = 0;
  std::size_t offset = 0, gradient_offset = 0;
};
// A warp, 128 and 512 threads per row; rows on and off vector boundaries.
const std::vector<CrossEntropyCase> entropy_cases = {
    {4, 1},        {7, 31, 3},         {3, 64}, {3, 77, 0, 1, 1},
    {3, 77, 3, 1}, {2, 1021, 3, 1, 1}, {0, 8},  {1, 9001}};
constexpr std::int64_t ignore = -100;

// Every third row is ignored.
std::vector<double> targets_of(const CrossEntropyCase& c) {
  std::vector<double> targets;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    targets.push_back(row % 3 == 2 ? ignore : static_cast<double>((row * 17 + 5) % c.vocabulary));
  }
  return targets;
}

void check(const CrossEntropyCase& c, DType dtype, DType target_dtype) {
  SCOPED_TRACE(fmt::format("{} x {} {}", c.rows, c.vocabulary, name_of(dtype)));
  const std::int64_t stride = c.vocabulary + c.padding;
  const auto n = static_cast<std::size_t>(c.rows * stride);
  const DType statistic = statistic_of(dtype);
  ComparedArray logits(random_values(n, dtype, 1, 3), dtype, c.offset);
  MirroredArray targets(targets_of(c), target_dtype);
  const auto targets_at = [&](Side side) {
    return side == Side::device ? targets.device() : targets.host();
  };
  ComparedArray loss(c.rows, statistic), log_sum_exp(c.rows, statistic);
  TestContext context;
  run_on_all_sides<CrossEntropyForward>(
      context, kernels::cuda::cross_entropy_forward, kernels::cpu::cross_entropy_forward, dtype,
      [&](Side side, DType type) -> CrossEntropyForward {
        return {
            logits.at(side), targets_at(side), target_dtype, loss.at(side), log_sum_exp.at(side),
            c.rows,          c.vocabulary,     stride,       ignore,        type};
      });
  loss.expect_within_bound("cross_entropy_forward", "loss");
  log_sum_exp.expect_within_bound("cross_entropy_forward", "log_sum_exp");

  ComparedArray dloss(std::vector<double>{0.7}, statistic);
  MirroredArray inverse_count(std::vector<double>{1.0 / 3}, float64);
  ComparedArray shift(log_sum_exp.low_values(), statistic);
  ComparedArray dlogits(c.rows * stride, dtype, c.gradient_offset);
  run_on_all_sides<CrossEntropyBackward>(
      context, kernels::cuda::cross_entropy_backward, kernels::cpu::cross_entropy_backward, dtype,
      [&](Side side, DType type) -> CrossEntropyBackward {
        const void* inverse = side == Side::device ? inverse_count.device() : inverse_count.host();
        return {logits.at(side),  targets_at(side), target_dtype,
                shift.at(side),   dloss.at(side),   static_cast<const double*>(inverse),
                dlogits.at(side), c.rows,           c.vocabulary,
                stride,           ignore,           type};
      });
  dlogits.expect_within_bound("cross_entropy_backward", "dlogits");  // with the untouched padding
  EXPECT_EQ(context.read_fault().kind, Fault::none);
}

TEST(CudaCrossEntropy, MatchesFp64) {
  for (const CrossEntropyCase& c : entropy_cases) {
    for (const DType dtype : floating_dtypes) check(c, dtype, c.padding > 0 ? int32 : int64);
  }
}

struct BlocksCase {
  std::int64_t rows, vocabulary, width;
  std::size_t offset = 0;
};

// Consecutive blocks of columns, in fp32 with gradients of each narrower type and in fp64: blocks
// may begin anywhere.
void check_blocks(const BlocksCase& c, DType dtype, DType out_dtype) {
  SCOPED_TRACE(fmt::format("{} x {} by {} {}", c.rows, c.vocabulary, c.width, name_of(out_dtype)));
  const auto n = static_cast<std::size_t>(c.rows * c.vocabulary);
  ComparedArray logits(random_values(n, dtype, 3, 3), dtype, c.offset);
  MirroredArray targets(targets_of({c.rows, c.vocabulary}), int32);
  ComparedArray loss(c.rows, dtype), log_sum_exp(c.rows, dtype), sum(c.rows, dtype);
  ComparedArray dlogits(c.rows * c.vocabulary, out_dtype, c.offset);
  ComparedArray dloss(std::vector<double>{0.7}, dtype);
  MirroredArray inverse_count(std::vector<double>{1.0 / 3}, float64);
  const auto column_of = [](void* array, std::int64_t column, DType type) {
    return static_cast<std::byte*>(array) + static_cast<std::size_t>(column) * size_of(type);
  };
  TestContext context;
  for (std::int64_t first = 0; first < c.vocabulary; first += c.width) {
    run_on_all_sides<CrossEntropyForward>(
        context, kernels::cuda::cross_entropy_forward, kernels::cpu::cross_entropy_forward, dtype,
        [&](Side side, DType type) -> CrossEntropyForward {
          return {.logits = column_of(logits.at(side), first, type),
                  .targets = side == Side::device ? targets.device() : targets.host(),
                  .target_dtype = int32,
                  .loss = loss.at(side),
                  .log_sum_exp = log_sum_exp.at(side),
                  .rows = c.rows,
                  .vocabulary = c.vocabulary,
                  .stride = c.vocabulary,
                  .ignore = ignore,
                  .dtype = type,
                  .first = first,
                  .columns = std::min(c.width, c.vocabulary - first),
                  .sum = sum.at(side)};
        });
  }
  loss.expect_within_bound("cross_entropy_forward", "loss");
  log_sum_exp.expect_within_bound("cross_entropy_forward", "log_sum_exp");
  for (std::int64_t first = 0; first < c.vocabulary; first += c.width) {
    run_on_all_sides<CrossEntropyBackward>(
        context, kernels::cuda::cross_entropy_backward, kernels::cpu::cross_entropy_backward, dtype,
        [&](Side side, DType type) -> CrossEntropyBackward {
          const void* inverse =
              side == Side::device ? inverse_count.device() : inverse_count.host();
          const DType out = side == Side::exact ? float64 : out_dtype;
          return {.logits = column_of(logits.at(side), first, type),
                  .targets = side == Side::device ? targets.device() : targets.host(),
                  .target_dtype = int32,
                  .log_sum_exp = log_sum_exp.at(side),
                  .dloss = dloss.at(side),
                  .inverse_count = static_cast<const double*>(inverse),
                  .dlogits = column_of(dlogits.at(side), first, out),
                  .rows = c.rows,
                  .vocabulary = c.vocabulary,
                  .stride = c.vocabulary,
                  .ignore = ignore,
                  .dtype = type,
                  .first = first,
                  .columns = std::min(c.width, c.vocabulary - first),
                  .out_dtype = out};
        });
  }
  dlogits.expect_within_bound("cross_entropy_backward", "dlogits");
  EXPECT_EQ(context.read_fault().kind, Fault::none);
}

TEST(CudaCrossEntropy, BlocksOfColumnsMatchFp64) {
  for (const BlocksCase& c : std::vector<BlocksCase>{{3, 64, 64},
                                                     {4, 64, 16},
                                                     {7, 77, 31, 1},
                                                     {2, 1021, 512},
                                                     {3, 301, 1},
                                                     {1, 9001, 4096}}) {
    for (const DType out_dtype : {float32, bfloat16, float16}) check_blocks(c, float32, out_dtype);
    check_blocks(c, float64, float64);
  }
}

// The gradient overwrites the logits, and rows are off vector boundaries: the bits do not change.
TEST(CudaCrossEntropy, PlaceChangesNoBit) {
  constexpr std::int64_t rows = 3, vocabulary = 301;
  for (const DType dtype : floating_dtypes) {
    const std::vector<double> values = random_values(rows * vocabulary, dtype, 2, 3);
    const DeviceMemory targets(targets_of({rows, vocabulary}), int32);
    const DType statistic = statistic_of(dtype);
    const DeviceMemory dloss({0.7}, statistic);
    const DeviceMemory inverse_count({0.5}, float64);
    const auto run = [&](std::size_t offset, bool in_place) {
      MirroredArray logits(values, dtype, offset), separate(values, dtype, offset);
      MirroredArray& dlogits = in_place ? logits : separate;
      const DeviceMemory loss(rows * size_of(statistic)), log_sum_exp(rows * size_of(statistic));
      TestContext context;
      kernels::cuda::cross_entropy_forward(
          {logits.device(), targets.data(), int32, loss.data(), log_sum_exp.data(), rows,
           vocabulary, vocabulary, ignore, dtype},
          context.queue());
      kernels::cuda::cross_entropy_backward(
          {logits.device(), targets.data(), int32, log_sum_exp.data(), dloss.data(),
           inverse_count.as<double>(), dlogits.device(), rows, vocabulary, vocabulary, ignore,
           dtype},
          context.queue());
      context.synchronize();
      return std::vector{loss.read(), log_sum_exp.read(), dlogits.device_bytes()};
    };
    const auto expected = run(0, false);
    for (const std::size_t offset : {0u, 1u, 2u, 3u, 7u}) {
      EXPECT_TRUE(run(offset, true) == expected) << name_of(dtype) << " " << offset;
    }
  }
}

TEST(CudaCrossEntropy, ReportsTargetsOutsideTheVocabulary) {
  const DeviceMemory logits(std::vector<double>(20), float32), dlogits(logits.bytes());
  const DeviceMemory loss(8), log_sum_exp({0, 0}, float32), dloss({1}, float32);
  const DeviceMemory inverse_count({1}, float64);
  for (const DType target_dtype : {int32, int64}) {
    for (const double bad : {10.0, -1.0}) {
      const DeviceMemory targets({3, bad}, target_dtype);
      TestContext forward, backward;
      kernels::cuda::cross_entropy_forward(
          {logits.data(), targets.data(), target_dtype, loss.data(), log_sum_exp.data(), 2, 10, 10,
           ignore, float32},
          forward.queue());
      forward.synchronize();
      kernels::cuda::cross_entropy_backward(
          {logits.data(), targets.data(), target_dtype, log_sum_exp.data(), dloss.data(),
           inverse_count.as<double>(), dlogits.data(), 2, 10, 10, ignore, float32},
          backward.queue());
      for (const Fault& fault : {forward.read_fault(), backward.read_fault()}) {
        EXPECT_EQ(fault.kind, Fault::cross_entropy_target);
        EXPECT_EQ(fault.position, 1);
        EXPECT_EQ(fault.value, static_cast<std::int64_t>(bad));
        EXPECT_EQ(fault.limit, 10);
      }
      EXPECT_TRUE(std::isfinite(loss.read(float32)[0]));
      EXPECT_TRUE(std::isnan(loss.read(float32)[1]));
      const std::vector<double> gradient = dlogits.read(float32);
      EXPECT_NE(gradient[3], 0);
      for (std::size_t i = 10; i < 20; ++i) EXPECT_EQ(gradient[i], 0);
    }
  }
}

TEST(CudaCrossEntropy, RefusesMismatchedArguments) {
  TestContext context;
  const DeviceMemory memory(64);
  void* p = memory.data();
  EXPECT_THROW(kernels::cuda::cross_entropy_forward({p, p, int32, p, p, 1, 8, 7, -1, float32},
                                                    context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::cross_entropy_forward({p, p, float32, p, p, 1, 8, 8, -1, float32},
                                                    context.queue()),
               std::logic_error);
  EXPECT_THROW(
      kernels::cuda::cross_entropy_backward(
          {p, p, int32, p, p, memory.as<double>(), p, 1, 8, 8, -1, int64}, context.queue()),
      std::logic_error);
  // Columns outside the vocabulary; a block without memory for its sum; 16-bit gradients of fp64.
  EXPECT_THROW(kernels::cuda::cross_entropy_forward(
                   {p, p, int32, p, p, 1, 8, 8, -1, float32, 1, 8, p}, context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::cross_entropy_forward(
                   {p, p, int32, p, p, 1, 8, 8, -1, float32, 0, 4, nullptr}, context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::cross_entropy_backward({p, p, int32, p, p, memory.as<double>(), p, 1,
                                                      8, 8, -1, float64, 0, 8, bfloat16},
                                                     context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
