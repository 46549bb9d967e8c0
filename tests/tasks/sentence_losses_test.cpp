// Losses of sentence encoders: their values by plain formulas, their gradients by differences, and
// the same results from one rank with a large batch and many with small ones.
#include "tasks/sentence_losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"
#include "engine/random.h"
#include "sharding/fully_shard.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera::tasks {
namespace {

using testing::check_gradients;
using testing::leaf;
using testing::values;
using testing::weighted_sum;
using Reals = std::vector<double>;

double dot(const Reals& u, const Reals& v, std::int64_t row_u, std::int64_t row_v,
           std::int64_t dim) {
  double total = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    total +=
        u[static_cast<std::size_t>(row_u * dim + i)] * v[static_cast<std::size_t>(row_v * dim + i)];
  }
  return total;
}

double cosine_of(const Reals& u, const Reals& v, std::int64_t row_u, std::int64_t row_v,
                 std::int64_t dim) {
  return dot(u, v, row_u, row_v, dim) /
         std::sqrt(dot(u, u, row_u, row_u, dim) * dot(v, v, row_v, row_v, dim));
}

TEST(SentenceLosses, CosineSimilarity) {
  const Tensor u = leaf({5, 7}, 1);
  const Tensor v = leaf({5, 7}, 2);
  const Reals got = cosine_similarity(u, v).to_vector();
  const Reals labels{0, 1, -0.5, 0.25, 0.75};
  double loss = 0;
  for (std::int64_t i = 0; i < 5; ++i) {
    const double cosine = cosine_of(u.to_vector(), v.to_vector(), i, i, 7);
    EXPECT_NEAR(got[static_cast<std::size_t>(i)], cosine, 1e-12);
    loss += std::pow(cosine - labels[static_cast<std::size_t>(i)], 2) / 5;
  }
  const Tensor targets = Tensor::from(labels, {5});
  EXPECT_NEAR(cosine_similarity_loss(u, v, targets).item(), loss, 1e-12);
  check_gradients([&] { return cosine_similarity_loss(u, v, targets); }, {u, v});
  // Labels of another dtype, and as a column.
  const Tensor column = reshape(cast(targets, float32), {5, 1});
  EXPECT_NEAR(cosine_similarity_loss(u, v, column).item(), loss, 1e-7);
}

TEST(SentenceLosses, AZeroVectorHasNoDirection) {
  Tensor u = Tensor::zeros({2, 3});
  u.set_requires_grad(true);
  const Tensor v = Tensor::full({2, 3}, 2.0);
  const Tensor cosine = cosine_similarity(u, v);
  EXPECT_EQ(cosine.to_vector(), (Reals{0, 0}));
  sum(cosine).backward();
  for (const double slope : u.grad().to_vector()) EXPECT_TRUE(std::isfinite(slope));
}

// Weight and bias by hand, and u differs from v: each third of the features has its own weights.
TEST(SentenceLosses, SoftmaxLoss) {
  const nn::ParameterDTypeGuard in_fp64(float64);
  manual_seed(4);
  const nn::Linear head = make_softmax_head(4, 3);
  ASSERT_EQ(head->weight().shape(), (Shape{3, 12}));
  ASSERT_EQ(head->bias().shape(), (Shape{3}));
  const Tensor u = leaf({5, 4}, 3);
  const Tensor v = leaf({5, 4}, 4);
  const std::vector<std::int64_t> labels{0, 2, 1, 1, 0};
  const Tensor targets = Tensor::from(labels, {5});
  const Reals weight = head->weight().to_vector(), bias = head->bias().to_vector();
  double loss = 0;
  for (std::int64_t row = 0; row < 5; ++row) {
    Reals logits = bias;
    for (std::int64_t label = 0; label < 3; ++label) {
      for (std::int64_t i = 0; i < 4; ++i) {
        const double x = u.to_vector()[static_cast<std::size_t>(row * 4 + i)];
        const double y = v.to_vector()[static_cast<std::size_t>(row * 4 + i)];
        const auto at = [&](std::int64_t part) {
          return weight[static_cast<std::size_t>(label * 12 + part * 4 + i)];
        };
        logits[static_cast<std::size_t>(label)] += at(0) * x + at(1) * y + at(2) * std::abs(x - y);
      }
    }
    double total = 0;
    for (const double logit : logits) total += std::exp(logit);
    loss += (std::log(total) -
             logits[static_cast<std::size_t>(labels[static_cast<std::size_t>(row)])]) /
            5;
  }
  EXPECT_NEAR(softmax_loss(u, v, targets, head).item(), loss, 1e-12);
  check_gradients([&] { return softmax_loss(u, v, targets, head); },
                  {u, v, head->weight(), head->bias()});
}

// The derivative of |u - v| is zero where they are equal, as in torch.
TEST(SentenceLosses, EqualSentencesHaveAZeroGradientOfTheDifference) {
  const nn::Linear head = make_softmax_head(2, 2);
  Tensor u = Tensor::full({1, 2}, 0.5);
  u.set_requires_grad(true);
  Tensor v = Tensor::full({1, 2}, 0.5);
  const auto gradient = [&](const Tensor& other) {
    u.zero_grad();
    sum(softmax_logits(u, other, head) * 1.0).backward();
    return u.grad().to_vector();
  };
  const Reals slopes = gradient(v);
  const Reals weight = head->weight().to_vector();
  EXPECT_NEAR(slopes[0], weight[0] + weight[6], 1e-6);
  EXPECT_NEAR(slopes[1], weight[1] + weight[7], 1e-6);
}

double ranking_loss(const Reals& anchors, const Reals& positives, std::int64_t rows,
                    std::int64_t dim, double scale) {
  double loss = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    double total = 0;
    for (std::int64_t j = 0; j < rows; ++j) {
      total += std::exp(scale * cosine_of(anchors, positives, i, j, dim));
    }
    loss += std::log(total) - scale * cosine_of(anchors, positives, i, i, dim);
  }
  return loss / static_cast<double>(rows);
}

TEST(SentenceLosses, MultipleNegativesRankingLoss) {
  launch(1, [](Context& context) {
    const Tensor u = leaf({5, 7}, 5);
    const Tensor v = leaf({5, 7}, 6);
    for (const double scale : {20.0, 1.0}) {
      EXPECT_NEAR(multiple_negatives_ranking_loss(u, v, context, scale).item(),
                  ranking_loss(u.to_vector(), v.to_vector(), 5, 7, scale), 1e-11);
      check_gradients([&] { return multiple_negatives_ranking_loss(u, v, context, scale); }, {u, v},
                      {.tolerance = 1e-6});
    }
  });
}

TEST(SentenceLosses, MseLoss) {
  const Tensor u = leaf({3, 4}, 7);
  Tensor targets = leaf({3, 4}, 8);
  double loss = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    loss += std::pow(u.to_vector()[i] - targets.to_vector()[i], 2) / 12;
  }
  EXPECT_NEAR(mse_loss(u, targets).item(), loss, 1e-12);
  check_gradients([&] { return mse_loss(u, targets); }, {u});
  mse_loss(u, targets).backward();
  EXPECT_FALSE(targets.grad().defined());
}

TEST(SentenceLosses, MarginMseLoss) {
  const Tensor q = leaf({3, 4}, 7), p = leaf({3, 4}, 8), n = leaf({3, 4}, 9);
  Tensor margins = leaf({3}, 10);
  double loss = 0;
  for (std::size_t row = 0; row < 3; ++row) {
    double margin = -margins.to_vector()[row];
    for (std::size_t i = 4 * row; i < 4 * row + 4; ++i) {
      margin += q.to_vector()[i] * (p.to_vector()[i] - n.to_vector()[i]);
    }
    loss += margin * margin / 3;
  }
  EXPECT_NEAR(margin_mse_loss(q, p, n, margins).item(), loss, 1e-12);
  check_gradients([&] { return margin_mse_loss(q, p, n, margins); }, {q, p, n});
  margin_mse_loss(q, p, n, margins).backward();
  EXPECT_FALSE(margins.grad().defined());
  EXPECT_EQ(dot_margins(q, p, p).to_vector(), Reals(3, 0.0));
}

TEST(SentenceLosses, LowPrecisionEmbeddingsAreWidened) {
  launch(1, [](Context& context) {
    const Tensor u = cast(values({4, 8}, 9), bfloat16);
    const Tensor v = cast(values({4, 8}, 10), bfloat16);
    const Tensor wide_u = cast(u, float32), wide_v = cast(v, float32);
    const Tensor loss = multiple_negatives_ranking_loss(u, v, context);
    EXPECT_EQ(loss.dtype(), float32);
    EXPECT_EQ(loss.item(), multiple_negatives_ranking_loss(wide_u, wide_v, context).item());
    EXPECT_EQ(mse_loss(u, v).item(), mse_loss(wide_u, wide_v).item());
    const nn::Linear head = make_softmax_head(8, 2);
    const Tensor labels = Tensor::from(std::vector<std::int32_t>{0, 1, 1, 0}, {4});
    EXPECT_EQ(softmax_loss(u, v, labels, head).item(),
              softmax_loss(wide_u, wide_v, labels, head).item());
  });
}

TEST(SentenceLosses, WrongShapesAreRefused) {
  launch(1, [](Context& context) {
    const Tensor u = values({4, 8}, 9);
    const Tensor other = values({3, 8}, 9);
    const nn::Linear head = make_softmax_head(8, 2);
    EXPECT_THROW((void)cosine_similarity_loss(u, other, other), std::logic_error);
    EXPECT_THROW((void)cosine_similarity_loss(u, u, values({3}, 1)), std::logic_error);
    EXPECT_THROW((void)softmax_loss(u, u, values({4}, 1), head), std::logic_error);
    EXPECT_THROW((void)multiple_negatives_ranking_loss(u, other, context), std::logic_error);
    EXPECT_THROW((void)mse_loss(u, other), std::logic_error);
    EXPECT_THROW((void)margin_mse_loss(u, u, other, values({4}, 1)), std::logic_error);
    EXPECT_THROW((void)margin_mse_loss(u, u, u, values({3}, 1)), std::logic_error);
  });
}

// An encoder of two units, and a head that belongs to the loss.
struct Pairs : nn::Module {
  Pairs() {
    first = register_module("first", nn::Linear(6, 16));
    second = register_module("second", nn::Linear(16, 8));
    head = register_module("head", make_softmax_head(8, 3));
  }
  [[nodiscard]] Tensor encode(const Tensor& x) const { return second(tanh(first(x))); }
  nn::Linear first, second, head;
};

enum class Loss { cosine, softmax, ranking, mse };
constexpr Loss all_losses[] = {Loss::cosine, Loss::softmax, Loss::ranking, Loss::mse};
constexpr std::int64_t pairs_in_all = 12;

Tensor rows_from(unsigned seed, std::int64_t first, std::int64_t count, std::int64_t columns) {
  const Reals all = values({pairs_in_all, columns}, seed).to_vector();
  std::vector<float> mine;
  for (std::int64_t i = first * columns; i < (first + count) * columns; ++i) {
    mine.push_back(static_cast<float>(all[static_cast<std::size_t>(i)]));
  }
  return Tensor::from(mine, {count, columns});
}

Tensor loss_of(Loss loss, const Pairs& net, Context& context, std::int64_t first,
               std::int64_t count) {
  const Tensor u = net.encode(rows_from(1, first, count, 6));
  if (loss == Loss::mse) return mse_loss(u, rows_from(2, first, count, 8));
  const Tensor v = net.encode(rows_from(3, first, count, 6));
  if (loss == Loss::cosine) {
    return cosine_similarity_loss(u, v, reshape(rows_from(4, first, count, 1), {count}));
  }
  if (loss == Loss::ranking) return multiple_negatives_ranking_loss(u, v, context);
  std::vector<std::int32_t> labels;
  for (std::int64_t i = first; i < first + count; ++i) {
    labels.push_back(static_cast<std::int32_t>(i % 3));
  }
  return softmax_loss(u, v, Tensor::from(labels, {count}), net.head);
}

struct Outcome {
  double loss = 0;
  Reals parameters;  // after three steps
};

Outcome train(int world, Loss loss, Strategy strategy, int group_size = 0) {
  Outcome outcome;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(11);
    Pairs net;
    ShardedModel model = fully_shard(net, context,
                                     {.strategy = strategy,
                                      .wrap = WrapPolicy::list({"first", "second"}),
                                      .group_size = group_size});
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    const std::int64_t batch = pairs_in_all / world;
    double last = 0;
    for (int step = 0; step < 3; ++step) {
      const Tensor value = loss_of(loss, net, context, context.rank() * batch, batch);
      last = context.mean(value.item());
      value.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto whole = model.unsharded();
    if (!context.is_main()) return;
    outcome.loss = last;
    for (const auto& parameter : net.named_parameters()) {
      const Reals part = parameter.tensor.to_vector();
      outcome.parameters.insert(outcome.parameters.end(), part.begin(), part.end());
    }
  });
  return outcome;
}

TEST(SentenceLosses, ManyRanksTrainLikeOneWithTheWholeBatch) {
  for (const Loss loss : all_losses) {
    const Outcome alone = train(1, loss, Strategy::no_shard);
    for (const int world : {2, 3, 4, 6}) {
      const Outcome many = train(world, loss, Strategy::full_shard);
      EXPECT_NEAR(many.loss, alone.loss, 1e-6 * std::max(1.0, alone.loss));
      ASSERT_EQ(many.parameters.size(), alone.parameters.size());
      double furthest = 0;
      for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
        furthest = std::max(furthest, std::abs(many.parameters[i] - alone.parameters[i]));
      }
      EXPECT_LT(furthest, 2e-6) << static_cast<int>(loss) << " on " << world;
    }
  }
}

TEST(SentenceLosses, EveryStrategyHasTheSameBits) {
  for (const Loss loss : all_losses) {
    for (const int world : {2, 3, 4}) {
      const Outcome expected = train(world, loss, Strategy::no_shard);
      for (const StrategyRow& row : strategy_table) {
        const int group = row.shards == ShardGroup::group ? (world == 4 ? 2 : world) : 0;
        const Outcome got = train(world, loss, row.strategy, group);
        EXPECT_EQ(got.loss, expected.loss) << name_of(row.strategy);
        EXPECT_EQ(got.parameters, expected.parameters) << name_of(row.strategy);
      }
    }
  }
}

// Without the other ranks' gradients, training with gathered negatives would give other results.
TEST(SentenceLosses, NegativesOfOtherRanksGetGradients) {
  std::vector<Reals> of_positive(2);
  launch(2, [&](Context& context) {
    const auto rank = static_cast<unsigned>(context.rank());
    const Tensor u = leaf({2, 4}, 20 + rank);
    const Tensor v = leaf({2, 4}, 30 + rank);
    multiple_negatives_ranking_loss(u, v, context).backward();
    of_positive[rank] = v.grad().to_vector();
  });
  launch(1, [&](Context& context) {
    const Tensor u = concatenate({values({2, 4}, 20), values({2, 4}, 21)});
    const Tensor a = leaf({2, 4}, 30), b = leaf({2, 4}, 31);
    multiple_negatives_ranking_loss(u, concatenate({a, b}), context).backward();
    for (std::size_t i = 0; i < 8; ++i) {  // two ranks' losses are summed, so one rank's is halved
      EXPECT_NEAR(of_positive[0][i], 2 * a.grad().to_vector()[i], 1e-12);
      EXPECT_NEAR(of_positive[1][i], 2 * b.grad().to_vector()[i], 1e-12);
    }
  });
}

}  // namespace
}  // namespace tessera::tasks
