// The head and its loss in tiles: compared with whole logits, and with the same bits for every
// chunk.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/ops.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using testing::values;

// A block has 1,024 rows, or 2,048 entries of the vocabulary: several of each, the last ones
// partial.
constexpr std::int64_t head_rows = 2100, head_vocabulary = 2051, head_width = 16;

// Some rows are ignored.
Tensor targets_below(std::int64_t vocabulary, std::int64_t rows) {
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    targets[static_cast<std::size_t>(r)] =
        r % 7 == 3 ? -100 : static_cast<std::int32_t>(r * 37 % vocabulary);
  }
  return Tensor::from(targets, {rows});
}

struct HeadInputs {
  Tensor x, weight, targets;

  explicit HeadInputs(DType dtype, std::int64_t rows = head_rows,
                      std::int64_t vocabulary = head_vocabulary, std::int64_t width = head_width)
      : x(cast(values({rows, width}, 1, -1.5, 1.5), dtype).set_requires_grad(true)),
        weight(cast(values({vocabulary, width}, 2, -1.5, 1.5), dtype).set_requires_grad(true)),
        targets(targets_below(vocabulary, rows)) {}
};

std::string bits_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data()), tensor.bytes()};
}

struct HeadBits {
  std::string loss, dx, dweight;
  bool operator==(const HeadBits&) const = default;
};

HeadBits bits_of_head(const HeadInputs& in, const LinearCrossEntropyOptions& options = {}) {
  Tensor x = in.x, weight = in.weight;
  x.zero_grad();
  weight.zero_grad();
  const Tensor loss = linear_cross_entropy(x, weight, in.targets, options);
  loss.backward(Tensor::scalar(0.7, loss.dtype()));
  return {bits_of(loss), bits_of(x.grad()), bits_of(weight.grad())};
}

TEST(LinearCrossEntropy, NoBitDependsOnTheChunk) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    SCOPED_TRACE(name_of(dtype));
    const HeadInputs in(dtype);
    const HeadBits expected = bits_of_head(in);
    for (const std::int64_t chunk : {1, 1024, 1025, 2100, 100'000}) {
      EXPECT_TRUE(bits_of_head(in, {.chunk_rows = chunk}) == expected) << chunk;
    }
  }
}

TEST(LinearCrossEntropy, NoBitDependsOnTheThreads) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    SCOPED_TRACE(name_of(dtype));
    const HeadInputs in(dtype);
    const int before = compute_threads();
    set_compute_threads(1);
    const HeadBits expected = bits_of_head(in);
    for (const int threads : {2, 3}) {
      set_compute_threads(threads);
      EXPECT_TRUE(bits_of_head(in) == expected) << threads;
    }
    set_compute_threads(before);
  }
}

// The gradient of a row is independent of the other rows, as long as the same number of targets
// counts.
TEST(LinearCrossEntropy, ARowsGradientDoesNotDependOnTheNumberOfRows) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    SCOPED_TRACE(name_of(dtype));
    const HeadInputs many(dtype);
    std::vector<std::int32_t> first_few(head_rows, -100);
    for (std::size_t r = 0; r < 5; ++r) first_few[r] = static_cast<std::int32_t>(500 * r);
    const auto gradient = [&](std::int64_t rows) {
      Tensor x = Tensor::view_of(many.x.storage(), 0, {rows, head_width}, dtype);
      x = x.clone().set_requires_grad(true);
      const Tensor targets = Tensor::from(
          std::vector<std::int32_t>(first_few.begin(), first_few.begin() + rows), {rows});
      linear_cross_entropy(x, many.weight.detach(), targets).backward();
      return bits_of(x.grad()).substr(0, 5 * head_width * size_of(dtype));
    };
    const std::string expected = gradient(head_rows);
    for (const std::int64_t rows : {5, 6, 17, 1024, 1025}) {
      EXPECT_TRUE(gradient(rows) == expected) << rows;
    }
  }
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> left = a.to_vector(), right = b.to_vector();
  double largest = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    largest = std::max(largest, std::abs(left[i] - right[i]));
  }
  return largest;
}

struct HeadGradients {
  Tensor loss, dx, dweight;
};

// Whole logits in fp64 give the right values; whole logits in the same dtype give the error of a
// plain computation.
HeadGradients of_whole_logits(const HeadInputs& in, DType dtype) {
  Tensor x = cast(in.x.detach(), dtype).clone().set_requires_grad(true);
  Tensor weight = cast(in.weight.detach(), dtype).clone().set_requires_grad(true);
  const Tensor loss = cross_entropy(linear(x, weight), in.targets);
  loss.backward();
  return {loss, x.grad(), weight.grad()};
}

TEST(LinearCrossEntropy, IsCrossEntropyOfWholeLogits) {
  for (const DType dtype : {float64, float32, bfloat16, float16}) {
    SCOPED_TRACE(name_of(dtype));
    // One block, and several blocks of both kinds.
    for (const auto& [rows, vocabulary] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{33, 257}, {1100, 2100}}) {
      const HeadInputs in(dtype, rows, vocabulary);
      const HeadGradients exact = of_whole_logits(in, float64);
      const HeadGradients plain = of_whole_logits(in, dtype);
      const Tensor loss = linear_cross_entropy(in.x, in.weight, in.targets);
      loss.backward();
      const double least = dtype == float64 ? 1e-13 : 1e-6;
      const auto check = [&](const Tensor& out, const Tensor& low, const Tensor& reference,
                             const char* what) {
        double size = 0;
        for (const double value : reference.to_vector()) size = std::max(size, std::abs(value));
        EXPECT_LE(largest_difference(out, reference),
                  2 * largest_difference(low, reference) + least * size)
            << what;
      };
      check(loss, plain.loss, exact.loss, "loss");
      check(in.x.grad(), plain.dx, exact.dx, "dx");
      check(in.weight.grad(), plain.dweight, exact.dweight, "dweight");
    }
  }
}

// Micro-batches: the loss is scaled and added to others, and its gradients are added to the old
// ones.
TEST(LinearCrossEntropy, AccumulatesLikeAnyOtherLoss) {
  for (const DType dtype : {float32, bfloat16}) {
    const HeadInputs in(dtype, 1030, 2060);
    const auto gradient = [&](auto&& loss) {
      Tensor weight = in.weight;
      weight.zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        (loss() * (1.0 / 3) + sum(cast(weight, float32)) * 0.25).backward();
      }
      return weight.grad().clone();
    };
    const Tensor tiled =
        gradient([&] { return linear_cross_entropy(in.x, in.weight, in.targets); });
    const Tensor whole =
        gradient([&] { return cross_entropy(linear(in.x, in.weight), in.targets); });
    EXPECT_LE(largest_difference(tiled, whole), dtype == float32 ? 1e-6 : 8e-3);
  }
}

// A given float32 gradient of a 16-bit weight gets the exact sums, without intermediate rounding.
TEST(LinearCrossEntropy, AGivenWideGradientIsWrittenByItsProducts) {
  for (const std::int64_t rows : {std::int64_t{100}, head_rows}) {  // one block of rows, several
    SCOPED_TRACE(rows);
    const HeadInputs in(bfloat16, rows);
    const std::string rounded = bits_of_head(in).dweight;
    Tensor weight = in.weight.detach().set_requires_grad(true);
    weight.impl()->grad = Tensor::empty(weight.shape(), float32).impl();
    linear_cross_entropy(in.x.detach(), weight, in.targets).backward(Tensor::scalar(0.7, float32));
    ASSERT_EQ(weight.grad().dtype(), float32);
    EXPECT_TRUE(bits_of(cast(weight.grad(), bfloat16)) == rounded);
    EXPECT_FALSE(bits_of(cast(cast(weight.grad(), bfloat16), float32)) == bits_of(weight.grad()));
  }
}

TEST(LinearCrossEntropy, WithoutRowsOrTargetsThatCountGradientsAreZero) {
  const HeadInputs in(float32, 3, 50, 4);
  Tensor empty = Tensor::empty({0, 4}).set_requires_grad(true);
  const Tensor loss = linear_cross_entropy(empty, in.weight, Tensor::empty({0}, int32));
  EXPECT_EQ(loss.item(), 0);
  loss.backward();
  EXPECT_EQ(in.weight.grad().to_vector(), std::vector<double>(200));
  Tensor weight = in.weight;
  weight.zero_grad();
  const Tensor none = linear_cross_entropy(in.x, weight, Tensor::full({3}, -100, int32));
  EXPECT_EQ(none.item(), 0);
  none.backward();
  EXPECT_EQ(weight.grad().to_vector(), std::vector<double>(200));
  EXPECT_EQ(in.x.grad().to_vector(), std::vector<double>(12));
}

// The formula of the header: a tile, one number per row, and the gradients.
TEST(LinearCrossEntropy, TakesATileOfMemory) {
  constexpr std::int64_t rows = 4096, vocabulary = 4096, width = 16;
  for (const DType dtype : {float32, bfloat16}) {
    SCOPED_TRACE(name_of(dtype));
    const HeadInputs in(dtype, rows, vocabulary, width);
    const auto& pool = MemoryPool::current();
    const std::size_t element = size_of(dtype);
    const std::size_t logits = 1024 * 2048 * sizeof(float);
    const std::size_t row_numbers = rows * sizeof(float);
    constexpr std::size_t numbers = 4096;  // the loss, the count, and their rounding
    const auto peak = [&](auto&& body) {
      pool->trim();  // cached blocks may be larger than requested
      const std::size_t before = pool->stats().in_use;
      pool->reset_peak();
      body();
      return pool->stats().peak_in_use - before;
    };
    Tensor loss;
    {
      const NoGradGuard evaluation;
      EXPECT_LE(peak([&] { loss = linear_cross_entropy(in.x, in.weight, in.targets); }),
                logits + 3 * row_numbers + numbers);
    }
    const std::size_t before = pool->stats().in_use;
    EXPECT_LE(peak([&] { loss = linear_cross_entropy(in.x, in.weight, in.targets); }),
              logits + 3 * row_numbers + numbers);
    EXPECT_LE(pool->stats().in_use - before, row_numbers + numbers);
    const bool narrow = dtype == bfloat16;
    const std::size_t gradients = (rows + vocabulary) * width * element;
    const std::size_t sums = (rows + 2048) * width * sizeof(float);
    EXPECT_LE(peak([&] { loss.backward(); }),
              gradients + logits + numbers + (narrow ? logits / 2 + sums : 0));
  }
}

TEST(LinearCrossEntropy, OnMetaNothingIsComputed) {
  const DeviceGuard meta(Device::meta());
  const Tensor x = Tensor::empty({2, 100, 4096}).set_requires_grad(true);
  const Tensor weight = Tensor::empty({128'256, 4096}).set_requires_grad(true);
  const Tensor loss = linear_cross_entropy(x, weight, Tensor::empty({2, 100}, int64));
  loss.backward();
  EXPECT_TRUE(x.grad().is_meta());
  EXPECT_EQ(weight.grad().shape(), weight.shape());
}

TEST(LinearCrossEntropy, RefusesMismatchedArguments) {
  const HeadInputs in(float32, 3, 50, 4);
  EXPECT_THROW(linear_cross_entropy(in.x, in.weight, Tensor::zeros({4}, int32)), std::logic_error);
  EXPECT_THROW(linear_cross_entropy(in.x, in.weight, Tensor::zeros({3})), std::logic_error);
  EXPECT_THROW(linear_cross_entropy(in.weight, in.x, in.targets), std::logic_error);
  EXPECT_THROW(linear_cross_entropy(in.x, Tensor::zeros({50, 5}), in.targets), std::logic_error);
  EXPECT_THROW(linear_cross_entropy(in.x, in.weight, in.targets, {.chunk_rows = -1}),
               std::logic_error);
  try {
    (void)linear_cross_entropy(in.x, in.weight, Tensor::full({3}, 50, int32));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_NE(std::string(error.what()).find("target 50 of row 0"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera
