// The norms of inputs are those of all rows of all ranks, from hooks that end with the forwards.
#include "trainer/pruning/input_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "engine/ops.h"
#include "sharding/context/context.h"

namespace tessera {
namespace {

// More rows than are widened at a time, on each rank others.
Tensor rows_of_rank(int rank, std::int64_t rows, std::int64_t width) {
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i + 1) * (rank + 1)));
  }
  return Tensor::from(values, {1, rows, width});
}

TEST(InputNorms, AreThoseOfAllRowsOfAllRanks) {
  constexpr std::int64_t wide = 512, rows = 3000, calls = 2;
  for (const int ranks : {1, 3}) {
    launch(ranks, [&](Context& context) {
      nn::Linear first(wide, 4), second(4, 2);
      const Tensor x = rows_of_rank(context.rank(), rows, wide);
      const std::vector<WatchedLayer> layers = {{"second", &*second}, {"first", &*first}};
      const auto norms = input_norms(
          layers,
          [&] {
            for (std::int64_t i = 0; i < calls; ++i) (void)second(relu(first(x)));
          },
          [&](std::string_view text) { return context.communicator().exchange(text); });
      ASSERT_EQ(norms.size(), 2u);
      EXPECT_EQ(norms[0].size(), 4u);
      ASSERT_EQ(norms[1].size(), static_cast<std::size_t>(wide));
      for (const std::size_t column : {0u, 1u, 17u, 511u}) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Tensor part = rows_of_rank(rank, rows, wide);
          const auto* values = part.data_as<float>();
          for (std::int64_t row = 0; row < rows; ++row) {
            const double value = values[static_cast<std::size_t>(row * wide) + column];
            sum += calls * value * value;
          }
        }
        EXPECT_FLOAT_EQ(norms[1][column], static_cast<float>(std::sqrt(sum))) << column;
      }
      EXPECT_FALSE(first->has_forward_hooks());
    });
  }
}

TEST(InputNorms, NeedACallAndFiniteInputs) {
  const RankExchange alone = [](std::string_view text) {
    return std::vector<std::string>{std::string(text)};
  };
  nn::Linear layer(2, 2);
  const std::vector<WatchedLayer> layers = {{"h.0.mlp", &*layer}};
  const auto code_of = [&](const std::function<void()>& forwards) {
    try {
      (void)input_norms(layers, forwards, alone);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("h.0.mlp"), std::string::npos);
      EXPECT_FALSE(layer->has_forward_hooks());
      return error.code();
    }
    return ErrorCode::runtime;
  };
  EXPECT_EQ(code_of([] {}), ErrorCode::configuration);
  EXPECT_EQ(code_of([&] { (void)layer(Tensor::full({1, 2}, INFINITY)); }), ErrorCode::numeric);
}

}  // namespace
}  // namespace tessera
