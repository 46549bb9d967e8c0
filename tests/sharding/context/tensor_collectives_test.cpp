// Context::all_gather, all_reduce and mean: rows of all ranks in rank order, tensors and gradients
// summed over the ranks in the fixed tree; the same for every strategy, backend and plan.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/shared/collective_cases.h"
#include "comm/shared/process_world.h"
#include "engine/ops.h"
#include "engine/recompute.h"
#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"
#include "support/gradient_check.h"
#include "tests/support/processes.h"

namespace tessera {
namespace {

using comm::cases::value_of;
using Numbers = std::vector<double>;

template <class T>
Tensor integer_rows(int rank, const Shape& shape) {
  std::vector<T> numbers;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    numbers.push_back(static_cast<T>(50 * rank + i));
  }
  return Tensor::from(numbers, shape);
}

Tensor rows_of(int rank, std::int64_t rows, std::int64_t columns, DType dtype,
               std::uint64_t seed = 1) {
  const Shape shape{rows, columns};
  if (dtype == int32) return integer_rows<std::int32_t>(rank, shape);
  if (dtype == int64) return integer_rows<std::int64_t>(rank, shape);
  if (dtype == DType::uint8) return integer_rows<std::uint8_t>(rank, shape);
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    numbers.push_back(value_of(seed, rank, i));
  }
  return cast(Tensor::from(numbers, shape), dtype);
}

TEST(TensorCollectives, RowsOfAllRanksInRankOrder) {
  for (const int world : {1, 2, 3, 5}) {
    for (const DType dtype : {float32, float64, bfloat16, float16, int32, int64, DType::uint8}) {
      launch(world, [&](Context& context) {
        for (int round = 0; round < 3; ++round) {
          const auto seed = static_cast<std::uint64_t>(round + 1);
          const Tensor all = context.all_gather(rows_of(context.rank(), 3, 5, dtype, seed));
          EXPECT_EQ(all.shape(), (Shape{3 * world, 5}));
          EXPECT_EQ(all.dtype(), dtype);
          Numbers expected;
          for (int rank = 0; rank < world; ++rank) {
            const Numbers part = rows_of(rank, 3, 5, dtype, seed).to_vector();
            expected.insert(expected.end(), part.begin(), part.end());
          }
          EXPECT_EQ(all.to_vector(), expected) << name_of(dtype) << ", " << world << " ranks";
        }
      });
    }
  }
}

// More shapes than have memory at a time, alternating; also no rows.
TEST(TensorCollectives, ShapesChange) {
  launch(3, [](Context& context) {
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t rows = 0; rows < 7; ++rows) {
        const Tensor all = context.all_gather(rows_of(context.rank(), rows, 4, float32));
        ASSERT_EQ(all.size(0), 3 * rows);
        if (rows > 0) {
          EXPECT_EQ(all.to_vector().back(), rows_of(2, rows, 4, float32).to_vector().back());
        }
      }
    }
  });
}

// The expected gradient of all rows on every rank, computed independently.
TEST(TensorCollectives, GradientsAreTheTreesSums) {
  for (const int world : {1, 2, 3, 5, 6}) {
    launch(world, [&](Context& context) {
      Tensor mine = rows_of(context.rank(), 2, 3, float32);
      mine.set_requires_grad(true);
      const auto weights = [&](int rank) { return rows_of(rank, 2 * world, 3, float32, 7); };
      sum(context.all_gather(mine) * weights(context.rank())).backward();
      for (std::int64_t i = 0; i < 6; ++i) {
        std::vector<float> of_ranks;
        for (int rank = 0; rank < world; ++rank) {
          of_ranks.push_back(static_cast<float>(
              weights(rank).to_vector()[static_cast<std::size_t>(6 * context.rank() + i)]));
        }
        EXPECT_EQ(mine.grad().to_vector()[static_cast<std::size_t>(i)],
                  static_cast<double>(comm::cases::tree(of_ranks, 0, of_ranks.size())));
      }
    });
  }
}

TEST(TensorCollectives, GradientsOf16BitRowsAreSummedIn32) {
  launch(4, [](Context& context) {
    Tensor mine = rows_of(context.rank(), 1, 1, bfloat16);
    mine.set_requires_grad(true);
    // 256 + 1 + 1 + 1: bf16 would lose each 1.
    const double own = context.rank() == 0 ? 256 : 1;
    sum(cast(context.all_gather(mine), float32) * own).backward();
    EXPECT_EQ(mine.grad().item(), 260);  // 259, rounded once
  });
}

// Each rank's loss depends on the rows of every rank: checks the gradient of the sum of all losses.
TEST(TensorCollectives, GradientCheck) {
  for (const int world : {2, 3}) {
    launch(world, [&](Context& context) {
      Tensor mine = testing::leaf({2, 3}, static_cast<unsigned>(context.rank()));
      const auto loss = [&] {
        const Tensor all = context.all_gather(mine * 1.5);
        const Tensor here = testing::weighted_sum(square(all), 1) * (context.rank() + 1.0);
        // The derivative on a rank includes its effect on the other ranks' losses: their sum.
        return here + (context.sum(here.item()) - here.item());
      };
      Tensor value = loss();
      value.backward();
      const Numbers tape = mine.grad().to_vector();
      for (int rank = 0; rank < world; ++rank) {
        for (std::int64_t i = 0; i < mine.elements(); ++i) {
          const NoGradGuard no_grad;
          double* element = mine.data_as<double>() + i;
          const double before = *element;
          const bool moves = context.rank() == rank;
          if (moves) *element = before + 1e-5;
          const double above = loss().item();
          if (moves) *element = before - 1e-5;
          const double below = loss().item();
          *element = before;
          if (moves) {
            EXPECT_NEAR((above - below) / 2e-5, tape[static_cast<std::size_t>(i)], 1e-6);
          }
        }
      }
    });
  }
}

TEST(TensorCollectives, TwiceInOneGraphAndAgainInBackward) {
  launch(3, [](Context& context) {
    const auto gradient = [&](bool again) {
      Tensor mine = rows_of(context.rank(), 2, 4, float32);
      mine.set_requires_grad(true);
      const auto body = [&](const Tensor& x) {
        const Tensor all = context.all_gather(x * 2.0);
        return sum(all * context.all_gather(square(x)));
      };
      (again ? recompute(body, mine) : body(mine)).backward();
      return mine.grad().to_vector();
    };
    EXPECT_EQ(gradient(true), gradient(false));
  });
}

// A module whose loss uses gathered rows has the same bits under every strategy.
TEST(TensorCollectives, EveryStrategyHasTheSameBits) {
  for (const int world : {2, 3, 4}) {
    std::vector<Numbers> gradients;
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      testing::on_ranks(world, options, [&](Context& context, auto& net, ShardedModel& model) {
        for (int step = 0; step < 2; ++step) {
          const auto batch = testing::toy_batch(2 * context.rank(), 2);
          const Tensor loss = net.loss(batch.ids, batch.targets);
          const Tensor all = context.all_gather(reshape(loss, {1, 1}));
          mean(square(all) * (1.0 + context.rank())).backward();
        }
        const double norm = model.clip_grad_norm(1e9);
        if (context.is_main()) gradients.push_back({norm});
      });
    }
    for (const Numbers& each : gradients) EXPECT_EQ(each, gradients.front()) << world << " ranks";
    EXPECT_GT(gradients.front()[0], 0);
  }
}

std::string failure_of(int world, const std::function<void(Context&)>& program) {
  return testing::message_of<std::exception>([&] { launch(world, program); });
}

TEST(TensorCollectives, RanksWithDifferentRowsGetAnError) {
  const std::string rows = failure_of(2, [](Context& context) {
    (void)context.all_gather(rows_of(0, context.rank() == 0 ? 3 : 2, 4, float32));
  });
  EXPECT_NE(rows.find("all_gather of float32 [3, 4]"), std::string::npos) << rows;
  EXPECT_NE(rows.find("all_gather of float32 [2, 4]"), std::string::npos) << rows;
  // As many bytes, and nothing to allocate any more.
  const std::string dtype = failure_of(2, [](Context& context) {
    (void)context.all_gather(rows_of(0, 3, 4, float32));
    (void)context.all_gather(rows_of(0, 3, 4, int32));
    (void)context.all_gather(rows_of(0, 3, 4, context.rank() == 0 ? float32 : int32));
  });
  EXPECT_NE(dtype.find("all_gather of float32"), std::string::npos) << dtype;
  EXPECT_NE(dtype.find("all_gather of int32"), std::string::npos) << dtype;
  const std::string alone = failure_of(2, [](Context& context) {
    if (context.rank() == 0) (void)context.all_gather(rows_of(0, 3, 4, float32));
    context.barrier();
  });
  EXPECT_NE(alone.find("barrier"), std::string::npos) << alone;
}

TEST(TensorCollectives, ScalarsAreRefused) {
  launch(2, [](Context& context) {
    EXPECT_THROW((void)context.all_gather(Tensor::scalar(1)), std::logic_error);
  });
}

TEST(TensorCollectives, ProcessesHaveTheBitsOfThreads) {
  constexpr int ranks = 3;
  const auto gradient = [](const Context& context) {
    Tensor mine = rows_of(context.rank(), 4, 8, float32);
    mine.set_requires_grad(true);
    const Tensor all = context.all_gather(mine);
    sum(square(all) * rows_of(context.rank(), 4 * ranks, 8, float32, 7)).backward();
    return mine.grad().to_vector();
  };
  std::vector<Numbers> expected(ranks);
  launch(ranks, [&](Context& context) {
    expected[static_cast<std::size_t>(context.rank())] = gradient(context);
  });
  testing::Processes processes(ranks, [&](int rank, std::atomic<int>&) {
    const testing::OneThread one_thread;
    const comm::World world = testing::world_of_process(rank, ranks);
    const Context context(world, comm::connect(world));
    TESSERA_CHECK(gradient(context) == expected[static_cast<std::size_t>(rank)], ErrorCode::runtime,
                  "rank {}: other bits", rank);
  });
  for (const testing::Outcome& outcome : processes.wait(std::chrono::seconds(30))) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

// Element by element in the fixed tree: the same bits as for sums of gradients.
TEST(TensorCollectives, SumsAndMeansAreTheTrees) {
  for (const int world : {1, 2, 3, 5, 6}) {
    launch(world, [&](Context& context) {
      const Tensor mine = rows_of(context.rank(), 3, 5, float32);
      const Numbers sums = context.all_reduce(mine).to_vector();
      const Numbers means = context.mean(mine).to_vector();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        std::vector<float> of_ranks;
        for (int rank = 0; rank < world; ++rank) {
          of_ranks.push_back(static_cast<float>(rows_of(rank, 3, 5, float32).to_vector()[i]));
        }
        const float sum = comm::cases::tree(of_ranks, 0, of_ranks.size());
        EXPECT_EQ(sums[i], static_cast<double>(sum));
        EXPECT_EQ(means[i], static_cast<double>(sum * (1.0f / static_cast<float>(world))));
      }
    });
  }
}

TEST(TensorCollectives, SumsOfEveryDtypeAndShape) {
  launch(3, [](Context& context) {
    const double own = context.rank() == 0 ? 256 : 1;
    EXPECT_EQ(context.all_reduce(Tensor::full({2}, own, bfloat16)).to_vector(),
              Numbers(2, 258));  // a bf16 sum of 256 + 1 + 1 would stay 256
    EXPECT_EQ(context.mean(Tensor::full({2}, 40000, float16)).to_vector(), Numbers(2, 40000));
    // fp64 to its last digit, with a factor that fp32 cannot represent.
    EXPECT_EQ(context.mean(Tensor::full({2}, own, float64)).to_vector(),
              Numbers(2, 258 * (1.0 / 3)));
    EXPECT_EQ(context.all_reduce(Tensor::scalar(2)).item(), 6);
    EXPECT_EQ(context.all_reduce(Tensor::empty({0, 3})).shape(), (Shape{0, 3}));
    for (std::int64_t rows = 1; rows < 7; ++rows) {
      EXPECT_EQ(context.all_reduce(Tensor::full({rows}, 1)).to_vector(),
                Numbers(static_cast<std::size_t>(rows), 3));
    }
    EXPECT_THROW((void)context.all_reduce(Tensor::from(std::vector<std::int64_t>{1}, {1})),
                 std::logic_error);
  });
}

// The gradient of the sum of all losses, as for all_gather and a sum of the rows.
TEST(TensorCollectives, GradientsOfSumsAreThoseOfGatheredRows) {
  for (const int world : {2, 3, 5}) {
    launch(world, [&](Context& context) {
      const auto gradient = [&](bool gathers) {
        Tensor x = rows_of(context.rank(), 1, 6, float32);
        x.set_requires_grad(true);
        const Tensor y = x * 2.0;
        Tensor sums;
        if (gathers) {
          const Tensor ones = Tensor::full({1, world}, 1);
          sums = matmul(ones, context.all_gather(y));
        } else {
          sums = context.all_reduce(y);
        }
        sum(square(sums) * rows_of(context.rank(), 1, 6, float32, 7)).backward();
        return x.grad().to_vector();
      };
      const Numbers gathered = gradient(true), reduced = gradient(false);
      for (std::size_t i = 0; i < gathered.size(); ++i) {
        EXPECT_NEAR(reduced[i], gathered[i], 1e-5 * (1 + std::abs(gathered[i])));
      }
    });
  }
}

TEST(TensorCollectives, GradientsOfMeansAreMeans) {
  launch(2, [](Context& context) {
    for (const DType dtype : {float32, float64}) {
      Tensor x = Tensor::full({3}, 1, dtype);
      x.set_requires_grad(true);
      const double own = context.rank() == 0 ? 3 : 5;
      // Twice in one graph: gradients accumulate.
      sum((context.mean(x) + context.mean(x * 2.0)) * own).backward();
      EXPECT_EQ(x.grad().to_vector(), Numbers(3, 3 * 4));
    }
  });
}

TEST(TensorCollectives, RanksWithDifferentTermsGetAnError) {
  const std::string told = failure_of(2, [](Context& context) {
    (void)context.all_reduce(rows_of(0, context.rank() == 0 ? 3 : 2, 4, float32));
  });
  EXPECT_NE(told.find("all_reduce of float32 [3, 4]"), std::string::npos) << told;
  EXPECT_NE(told.find("all_reduce of float32 [2, 4]"), std::string::npos) << told;
}

// A plan counts the bytes that come from other ranks, and holds the memory of a rank.
TEST(TensorCollectives, PlansCountIt) {
  constexpr int ranks = 4;
  const auto step = [](const Context& context) {
    Tensor mine = Tensor::full({8, 16}, 1.0, float32, context.device());
    mine.set_requires_grad(true);
    sum(square(context.all_gather(mine))).backward();
  };
  for (const bool one_memory : {true, false}) {
    const MemoryPlan planned =
        plan({.ranks = ranks, .one_memory = one_memory}, [&](Planning& planning) {
          for (int i = 0; i < 2; ++i) {
            step(planning.context());
            planning.end_step();
          }
        });
    std::uint64_t gathered = 0, reduced = 0;
    for (const PlannedCollective& each : planned.collectives) {
      EXPECT_EQ(each.calls, 1u);
      if (each.op == "all_gather" && each.phase == "forward") gathered += each.bytes;
      if (each.op == "reduce_scatter" && each.phase == "backward") reduced += each.bytes;
    }
    constexpr std::uint64_t bytes = 8 * 16 * 4;
    EXPECT_EQ(gathered, (ranks - 1) * bytes);
    EXPECT_EQ(reduced, (ranks - 1) * bytes);
    if (!one_memory) continue;
    launch(ranks, [&](Context& context) {
      for (int i = 0; i < 2; ++i) step(context);
      EXPECT_EQ(measure_memory(context).of(MemoryKind::communication),
                planned.memory.of(MemoryKind::communication));
    });
  }
}

// The call that the program made, with the shapes and the ranks, whether it is the first or not.
TEST(TensorCollectives, MeansOfOtherShapesAreTold) {
  for (const bool again : {false, true}) {
    const std::string told = failure_of(2, [again](Context& context) {
      for (const std::int64_t rows : {2, 4})
        if (again) (void)context.mean(rows_of(0, rows, 3, float32));
      (void)context.mean(rows_of(0, context.is_main() ? 2 : 4, 3, float32));
    });
    EXPECT_NE(told.find("rank 0"), std::string::npos) << told;
    EXPECT_NE(told.find("'mean of float32 [2, 3]'"), std::string::npos) << told;
    EXPECT_NE(told.find("'mean of float32 [4, 3]'"), std::string::npos) << told;
    EXPECT_EQ(told.find("summands"), std::string::npos) << told;
    EXPECT_EQ(told.find("sums"), std::string::npos) << told;
  }
}

}  // namespace
}  // namespace tessera
