// Collective operations of a training loop.
#include "sharding/context/context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "base/error.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

data::TensorDataset numbered(std::int64_t samples) {
  std::vector<float> inputs;
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < samples; ++i) {
    inputs.push_back(static_cast<float>(i));
    inputs.push_back(static_cast<float>(-i));
    targets.push_back(i);
  }
  return {Tensor::from(inputs, {samples, 2}), Tensor::from(targets, {samples})};
}

// Every sample is returned once, in order, however much padding was added.
TEST(Context, GatherForMetricsIsExact) {
  for (int world = 1; world <= 5; ++world) {
    for (const std::int64_t samples : {1, 6, 7, 16, 23}) {
      launch(world, [&](Context& context) {
        data::TensorLoader loader =
            context.prepare(data::TensorLoader(numbered(samples), {.batch_size = 2}));
        std::vector<double> seen;
        for (auto [x, y] : loader) {
          EXPECT_EQ(y.size(0), 2);
          const Tensor all = context.gather_for_metrics(y, loader);
          const Tensor inputs = context.gather_for_metrics(x, loader);
          EXPECT_EQ(inputs.size(0), all.size(0));
          EXPECT_EQ(inputs.size(1), 2);
          const auto values = all.to_vector();
          for (std::size_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(inputs.to_vector()[2 * i], values[i]);
          }
          seen.insert(seen.end(), values.begin(), values.end());
        }
        ASSERT_EQ(static_cast<std::int64_t>(seen.size()), samples) << world << " ranks";
        for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<double>(i));
      });
    }
  }
}

// For every dtype, on odd world sizes, with a last batch of which some ranks have all samples, one
// has a part, and others only padding: the bytes of each sample's value, once and in order.
TEST(Context, GatherForMetricsKeepsEveryDtype) {
  for (const int world : {1, 3, 5, 7}) {
    for (const DType dtype : {bfloat16, float16, float32, float64, int32, int64}) {
      constexpr std::int64_t samples = 17;
      launch(world, [&](Context& context) {
        data::TensorLoader loader =
            context.prepare(data::TensorLoader(numbered(samples), {.batch_size = 3}));
        std::vector<double> seen;
        for (auto [x, y] : loader) {
          std::vector<std::int32_t> narrow;
          for (const double value : y.to_vector()) {
            narrow.push_back(static_cast<std::int32_t>(value));
          }
          const Tensor values = dtype == int64   ? y
                                : dtype == int32 ? Tensor::from(narrow, y.shape())
                                                 : cast(y, dtype);
          const Tensor all = context.gather_for_metrics(values, loader);
          EXPECT_EQ(all.dtype(), dtype);
          const auto found = all.to_vector();
          seen.insert(seen.end(), found.begin(), found.end());
        }
        ASSERT_EQ(static_cast<std::int64_t>(seen.size()), samples) << world << " ranks";
        for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<double>(i));
      });
    }
  }
}

// One value per batch would be mistaken for the value of its first sample.
TEST(Context, GatherForMetricsRefusesFewerValuesThanSamples) {
  launch(1, [](Context& context) {
    data::TensorLoader loader = context.prepare(data::TensorLoader(numbered(4), {.batch_size = 2}));
    for (auto [x, y] : loader) {
      EXPECT_THROW((void)context.gather_for_metrics(Tensor::full({1}, 1), loader),
                   std::logic_error);
    }
  });
}

TEST(Context, GatherForMetricsRefusesScalars) {
  launch(1, [](Context& context) {
    data::TensorLoader loader = context.prepare(data::TensorLoader(numbered(2), {}));
    for (auto [x, y] : loader) {
      EXPECT_THROW((void)context.gather_for_metrics(Tensor::scalar(1), loader), std::logic_error);
    }
  });
}

// For loops without a loader: each rank gives its number of rows, also zero, in rank order.
TEST(Context, GatherForMetricsOfANumberOfSamples) {
  for (const int world : {1, 2, 4}) {
    launch(world, [&](Context& context) {
      for (const DType dtype : {float32, int64, bfloat16}) {
        const int rank = context.rank();
        const std::int64_t samples = rank == 1 ? 0 : rank + 1;
        const Tensor values = dtype == int64
                                  ? Tensor::from(std::vector<std::int64_t>(10, rank), {5, 2})
                                  : Tensor::full({5, 2}, rank, dtype);
        const Tensor all = context.gather_for_metrics(values, samples);
        std::vector<double> expected;
        for (int from = 0; from < world; ++from) {
          expected.insert(expected.end(), from == 1 ? 0 : 2 * (from + 1), from);
        }
        EXPECT_EQ(all.to_vector(), expected);
        EXPECT_EQ(all.shape(), (Shape{static_cast<std::int64_t>(expected.size()) / 2, 2}));
        EXPECT_EQ(all.dtype(), dtype);
        // A rank may have no rows at all.
        const Tensor own = rank == 1 ? Tensor::empty({0, 2}, dtype) : values;
        EXPECT_EQ(context.gather_for_metrics(own, samples).to_vector(), expected);
      }
      EXPECT_THROW((void)context.gather_for_metrics(Tensor::full({2}, 1), 3), std::logic_error);
      EXPECT_THROW((void)context.gather_for_metrics(Tensor::full({2}, 1), -1), std::logic_error);
    });
  }
}

TEST(Context, GatherForMetricsNamesTheNumberOfRows) {
  launch(2, [](Context& context) {
    const Tensor two = Tensor::full({2, 3}, 1);
    for (const int samples : {3, -1}) {
      const std::string text = testing::message_of<std::logic_error>(
          [&] { (void)context.gather_for_metrics(two, samples); });
      EXPECT_EQ(text, "gather_for_metrics(values, n) with n = " + std::to_string(samples) +
                          " on rank " + std::to_string(context.rank()) +
                          ", where values of shape [2, 3] have 2 rows: n is a number of rows from "
                          "0 to that, one row for each sample");
    }
  });
}

// As many bytes of something else would be taken for this.
TEST(Context, GatherForMetricsRefusesOtherRows) {
  for (const bool other_dtype : {true, false}) {
    launch(2, [&](Context& context) {
      const bool odd = context.rank() == 1;
      const Tensor values = other_dtype ? Tensor::full({2, 2}, 1, odd ? float64 : float32)
                                        : Tensor::full(odd ? Shape{4, 1} : Shape{2, 2}, 1);
      try {
        (void)context.gather_for_metrics(values, values.size(0));
        ADD_FAILURE() << "no exception";
      } catch (const std::logic_error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find(other_dtype ? "float64 [1, 2]" : "float32 [1, 1]"), std::string::npos)
            << text;
        EXPECT_NE(text.find("of rank 1"), std::string::npos) << text;
      }
    });
  }
}

// The ranks together get the samples that one rank with the larger batch gets.
TEST(Context, PrepareDistributesSamples) {
  std::mutex mutex;
  std::map<int, std::vector<std::vector<double>>> by_step;  // step -> rank -> samples
  launch(3, [&](Context& context) {
    data::TensorLoader loader =
        context.prepare(data::TensorLoader(numbered(18), {.batch_size = 2, .shuffle = true}));
    int step = 0;
    for (auto [x, y] : loader) {
      const std::lock_guard lock(mutex);
      by_step[step].resize(3);
      by_step[step++][static_cast<std::size_t>(context.rank())] = y.to_vector();
    }
  });
  data::TensorLoader alone(numbered(18), {.batch_size = 6, .shuffle = true});
  int step = 0;
  for (auto [x, y] : alone) {
    std::vector<double> together;
    for (const auto& of_rank : by_step[step]) {
      together.insert(together.end(), of_rank.begin(), of_rank.end());
    }
    EXPECT_EQ(together, y.to_vector());
    ++step;
  }
  EXPECT_EQ(static_cast<int>(by_step.size()), step);
}

// The targets in their order, and a dropout mask per batch, of one rank in one epoch.
std::vector<double> epoch_of(data::TensorLoader loader) {
  std::vector<double> seen;
  for (auto [x, y] : loader) {
    const auto targets = y.to_vector();
    seen.insert(seen.end(), targets.begin(), targets.end());
    const auto mask = dropout(Tensor::full({y.size(0), 4}, 1.0), 0.5).to_vector();
    seen.insert(seen.end(), mask.begin(), mask.end());
  }
  return seen;
}

// The loop of the README inside a loop over epochs.
TEST(Context, EachPreparedEpochHasItsOwnOrderAndMasks) {
  constexpr int ranks = 3;
  constexpr int epochs = 3;
  const data::TensorLoader loader(numbered(24), {.batch_size = 2, .shuffle = true});
  std::vector<std::vector<std::vector<double>>> by_rank(ranks);
  launch(ranks, [&](Context& context) {
    auto& mine = by_rank[static_cast<std::size_t>(context.rank())];
    // Ranks that are threads may share the loader.
    for (int epoch = 0; epoch < epochs; ++epoch) mine.push_back(epoch_of(context.prepare(loader)));
    // The epochs of a restarted object have the same order.
    data::TensorLoader kept =
        context.prepare(data::TensorLoader(numbered(24), {.batch_size = 2, .shuffle = true}));
    for (int epoch = 0; epoch < epochs; ++epoch) EXPECT_EQ(epoch_of(kept), mine[epoch]);
  });
  for (const auto& of_rank : by_rank) {
    for (int epoch = 1; epoch < epochs; ++epoch) EXPECT_NE(of_rank[epoch], of_rank[0]);
    EXPECT_NE(of_rank[1], of_rank[2]);
  }
}

// A loop that reads its own data, without a loader or a position: ranks draw different masks, equal
// to those that one rank draws for the whole batch.
TEST(Context, RanksDrawTheirOwnMasksWithoutALoader) {
  constexpr int ranks = 3;
  std::vector<std::vector<std::vector<double>>> by_rank(ranks);
  launch(ranks, [&](Context& context) {
    manual_seed(5);
    for (int step = 0; step < 2; ++step) {
      by_rank[static_cast<std::size_t>(context.rank())].push_back(
          dropout(Tensor::full({2, 20}, 1), 0.5).to_vector());
    }
  });
  manual_seed(5);
  for (std::size_t step = 0; step < 2; ++step) {
    std::vector<double> together;
    for (const auto& mine : by_rank) {
      together.insert(together.end(), mine[step].begin(), mine[step].end());
    }
    EXPECT_EQ(together, dropout(Tensor::full({2 * ranks, 20}, 1), 0.5).to_vector());
    EXPECT_NE(by_rank[0][step], by_rank[1][step]);
  }
}

// A run that stopped in its third epoch resumes there.
TEST(Context, AnEpochCanBeChosen) {
  launch(2, [&](Context& context) {
    const data::TensorLoader loader(numbered(24), {.batch_size = 2, .shuffle = true});
    std::vector<std::vector<double>> epochs;
    for (int epoch = 0; epoch < 4; ++epoch) epochs.push_back(epoch_of(context.prepare(loader)));
    data::TensorLoader again =
        context.prepare(data::TensorLoader(numbered(24), {.batch_size = 2, .shuffle = true}));
    again.set_epoch(2);
    EXPECT_EQ(epoch_of(again), epochs[2]);
    EXPECT_EQ(epoch_of(again), epochs[3]);
    EXPECT_THROW(again.set_epoch(-1), std::logic_error);
  });
}

TEST(Context, SumMeanMax) {
  launch(4, [](Context& context) {
    const double mine = context.rank() + 1;
    EXPECT_EQ(context.sum(mine), 10);
    EXPECT_EQ(context.mean(mine), 2.5);
    EXPECT_EQ(context.max(mine), 4);
    EXPECT_EQ(context.max(-mine), -1);
    // In rank order: the same bits on every rank although addition of doubles is not associative.
    const double tenth = 0.1 * mine;
    EXPECT_EQ(context.sum(tenth), ((0.1 * 1 + 0.1 * 2) + 0.1 * 3) + 0.1 * 4);
    context.barrier();
    EXPECT_EQ(context.is_main(), context.rank() == 0);
    EXPECT_EQ(context.world().local_size, 4);
  });
}

TEST(Context, MaxOfNotANumberIsNotANumber) {
  launch(3, [](Context& context) {
    const double value = context.rank() == 1 ? std::nan("") : 1.0;
    EXPECT_TRUE(std::isnan(context.sum(value)));
    EXPECT_TRUE(std::isnan(context.max(value))) << context.rank();
  });
}

TEST(Launch, RethrowsTheFirstFailure) {
  try {
    launch(3, [](Context& context) {
      if (context.rank() == 1) fail(ErrorCode::data, "the file of rank 1 is empty");
      context.barrier();
    });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_STREQ(error.what(), "the file of rank 1 is empty");
  }
}

}  // namespace
}  // namespace tessera
