// Attention over sequences whose positions lie on several ranks: values and gradients are those of
// one rank, for every kind of attention; its bytes; what is refused.
#include "sharding/context_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/recompute.h"
#include "engine/tensor_ops.h"
#include "sharding/plan/plan.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

struct Problem {
  std::int64_t batch = 2, length = 12, heads = 4, key_heads = 2, size = 3, value_size = 5;
  AttentionOptions options = {.causal = true};
  std::int64_t keys = 0;  // 0: as many as queries
};

void expect_near(const Tensor& mine, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(mine.shape(), expected.shape()) << what;
  const Numbers a = mine.to_vector(), b = expected.to_vector();
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << what << ", " << i;
}

using Attend = std::function<Tensor(const ContextParallel&, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const AttentionOptions&)>;

Tensor attend(const ContextParallel& sequence, const Tensor& q, const Tensor& k, const Tensor& v,
              const AttentionOptions& options) {
  return sequence.attention(q, k, v, options);
}

// q, k, v and, if there are any, the sinks.
std::vector<Tensor> leaves_of(const Problem& p, bool has_sinks) {
  const std::int64_t keys = p.keys == 0 ? p.length : p.keys;
  std::vector<Tensor> leaves{testing::leaf({p.batch, p.length, p.heads * p.size}, 1),
                             testing::leaf({p.batch, keys, p.key_heads * p.size}, 2),
                             testing::leaf({p.batch, keys, p.key_heads * p.value_size}, 3)};
  if (has_sinks) leaves.push_back(testing::leaf({p.heads}, 4));
  return leaves;
}

// A rank's output and its gradients of q, k, v and the sinks, against those of whole sequences.
void expect_of_one_rank(int ranks, const Problem& problem, const Attend& by = attend) {
  launch(ranks, [&](Context& context) {
    const testing::OneThread one_thread;
    const ContextParallel sequence(context, ranks);
    AttentionOptions options = problem.options;
    options.heads = problem.heads;
    options.key_heads = problem.key_heads;
    const bool has_sinks = options.sinks.defined();
    const auto part = [&](const Tensor& x) { return sequence.part_of(x); };

    const std::vector<Tensor> whole = leaves_of(problem, has_sinks);
    if (has_sinks) options.sinks = whole[3];
    const Tensor expected = attention(whole[0], whole[1], whole[2], options);
    const Tensor weights = testing::values(expected.shape(), 99);
    sum(expected * weights).backward();

    std::vector<Tensor> mine;
    for (const Tensor& x : whole) {
      mine.push_back(x.dimensions() == 1 ? x.detach() : part(x));
      mine.back().set_requires_grad(true);
    }
    if (has_sinks) options.sinks = mine[3];
    const Tensor out = by(sequence, mine[0], mine[1], mine[2], options);
    expect_near(out, part(expected), "out");
    sum(out * part(weights)).backward();
    expect_near(mine[0].grad(), part(whole[0].grad()), "dq");
    expect_near(mine[1].grad(), part(whole[1].grad()), "dk");
    expect_near(mine[2].grad(), part(whole[2].grad()), "dv");
    // Each rank has the gradient of its own heads, or of its own queries.
    if (has_sinks) expect_near(context.all_reduce(mine[3].grad()), whole[3].grad(), "sinks");
  });
}

TEST(ContextParallel, IsTheAttentionOfOneRank) {
  for (const int ranks : {1, 2, 4}) expect_of_one_rank(ranks, {});
  Problem not_causal;
  not_causal.options = {};
  expect_of_one_rank(2, not_causal);
}

TEST(ContextParallel, RepeatsKeyHeadsThatTheRanksDoNotDivide) {
  expect_of_one_rank(4, {.heads = 4, .key_heads = 1});
  expect_of_one_rank(4, {.heads = 12, .key_heads = 6});
  expect_of_one_rank(3, {.heads = 6, .key_heads = 2});
}

TEST(ContextParallel, GathersKeysIfTheRanksDoNotDivideTheHeads) {
  expect_of_one_rank(3, {.heads = 4, .key_heads = 2});
  expect_of_one_rank(4, {.heads = 3, .key_heads = 3, .options = {.causal = true, .window = 4}});
  expect_of_one_rank(3, {.heads = 2, .key_heads = 1, .options = {}});
  expect_of_one_rank(
      3, {.heads = 2, .key_heads = 1, .options = {.causal = true, .sinks = Tensor::zeros({1})}});
}

TEST(ContextParallel, TakesMoreOrFewerKeysThanQueries) {
  for (const std::int64_t heads : {6, 5}) {  // 5 heads: keys are gathered
    for (const int ranks : {2, 3}) {
      for (const bool causal : {false, true}) {
        expect_of_one_rank(
            ranks, {.heads = heads, .key_heads = heads, .options = {.causal = causal}, .keys = 24});
      }
      expect_of_one_rank(ranks, {.heads = heads, .key_heads = heads, .options = {}, .keys = 6});
    }
  }
}

TEST(ContextParallel, HasTheOptionsOfAttention) {
  for (const int ranks : {2, 4}) {
    expect_of_one_rank(ranks, {.options = {.causal = true, .window = 5, .soft_cap = 1.5}});
    expect_of_one_rank(ranks, {.options = {.causal = true, .scale = 0.7}});
    expect_of_one_rank(ranks, {.options = {.causal = true, .sinks = Tensor::zeros({1})}});
    std::vector<std::int32_t> starts;
    for (int row = 0; row < 2; ++row) {
      for (int i = 0; i < 12; ++i) starts.push_back(i < 5 + row ? 0 : 5 + row);
    }
    expect_of_one_rank(
        ranks, {.options = {.causal = true, .document_starts = Tensor::from(starts, {2, 12})}});
  }
}

TEST(ContextParallel, TakesPackedProjections) {
  const Attend packed = [](const ContextParallel& sequence, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionOptions& options) {
    return sequence.packed_attention(concatenate({q, k, v}, -1), options);
  };
  for (const int ranks : {1, 2, 4}) {
    expect_of_one_rank(ranks, {.key_heads = 4, .value_size = 3}, packed);
    expect_of_one_rank(ranks, {.key_heads = 2, .value_size = 3}, packed);
  }
  expect_of_one_rank(3, {.key_heads = 2, .value_size = 3}, packed);
}

TEST(ContextParallel, WorksInARecomputedFunction) {
  const Attend again = [](const ContextParallel& sequence, const Tensor& q, const Tensor& k,
                          const Tensor& v, const AttentionOptions& options) {
    return recompute(
        [&sequence, options](const Tensor& a, const Tensor& b, const Tensor& c) {
          return sequence.attention(a, b, c, options);
        },
        q, k, v);
  };
  expect_of_one_rank(2, {}, again);
}

// Blocks of ranks have sequences of their own.
TEST(ContextParallel, BlocksDoNotSeeEachOther) {
  launch(4, [](Context& context) {
    const ContextParallel sequence(context, 2);
    EXPECT_EQ(sequence.ranks(), 2);
    EXPECT_EQ(sequence.part(), context.rank() % 2);
    EXPECT_EQ(sequence.block(), context.rank() / 2);
    EXPECT_EQ(sequence.blocks(), 2);
    const auto seed = static_cast<unsigned>(sequence.block());
    const Tensor whole = testing::values({1, 4, 6}, seed + 1);
    const Tensor part = sequence.part_of(whole);
    const AttentionOptions options{.heads = 2, .causal = true};
    expect_near(sequence.attention(part, part, part, options),
                sequence.part_of(attention(whole, whole, whole, options)), "of a block");
  });
}

// (ranks - 1) / ranks of q, k, v and the result, and as much in the backward.
TEST(ContextParallel, CountsTheBytesThatReachARank) {
  for (const int ranks : {2, 4}) {
    launch(ranks, [&](Context& context) {
      const ContextParallel sequence(context, ranks);
      Tensor x = Tensor::full({2, 8, 24}, 1.0, float32);
      x.set_requires_grad(true);
      const Tensor keys = narrow(x, 2, 0, 12);
      const AttentionOptions options{.heads = 8, .key_heads = 4, .causal = true};
      const Tensor out = sequence.attention(x, keys, keys, options);
      const std::uint64_t sent = (x.bytes() + 2 * keys.bytes() + out.bytes()) *
                                 static_cast<std::uint64_t>(ranks - 1) /
                                 static_cast<std::uint64_t>(ranks);
      EXPECT_EQ(sequence.communication().bytes, sent);
      sum(out).backward();
      EXPECT_EQ(sequence.communication().bytes, 2 * sent);
      EXPECT_EQ(sequence.communication().collectives, 8u);
      EXPECT_GE(sequence.communication().exposed_seconds, 0);
    });
  }
}

TEST(ContextParallel, CountsGatheredKeys) {
  constexpr int ranks = 3;
  launch(ranks, [&](Context& context) {
    const ContextParallel sequence(context, ranks);
    Tensor x = Tensor::full({1, 4, 32}, 1.0, float32);
    x.set_requires_grad(true);
    const Tensor out = sequence.attention(x, x, x, {.heads = 4, .causal = true});
    const std::uint64_t sent = 2 * x.bytes() * (ranks - 1);
    EXPECT_EQ(sequence.communication().bytes, sent);
    sum(out).backward();
    EXPECT_EQ(sequence.communication().bytes, 2 * sent);
    EXPECT_EQ(sequence.communication().collectives, 4u);
  });
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST(ContextParallel, RefusesWhatItCannotCompute) {
  launch(3, [](Context& context) {
    EXPECT_EQ(refusal([&] { (void)ContextParallel(context, 2); }),
              "context parallelism over 2 ranks in a world of 3; it must divide the world");
    const ContextParallel sequence(context, 3);
    const Tensor x = Tensor::full({1, 2, 6}, 1.0);
    const auto told = [&](const AttentionOptions& options) {
      return refusal([&] { (void)sequence.attention(x, x, x, options); });
    };
    EXPECT_NE(told({.heads = 3, .key_mask = Tensor::full({1, 6}, 1, DType::uint8)})
                  .find("with a key_mask: it takes rows of equal length"),
              std::string::npos);
    EXPECT_NE(told({.heads = 3, .bias = Tensor::full({6, 6}, 1.0)}).find("with a bias"),
              std::string::npos);
    EXPECT_NE(told({.heads = 2, .causal = true, .document_starts = Tensor::full({1, 6}, 0, int32)})
                  .find("2 heads do not divide over 3 ranks"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                (void)sequence.part_of(Tensor::full({1, 7}, 1, int32));
              }).find("shape [1, 7]: [batch, T, ...] is required, with a T that 3 ranks divide"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                (void)sequence.packed_attention(x, {.heads = 4, .causal = true});
              }).find("4 heads and 4 key heads"),
              std::string::npos);
  });
}

// The ranks' pieces have equally many bytes.
TEST(ContextParallel, RanksThatDifferGetAnErrorThatSaysHow) {
  using Differs = std::function<void(int rank, AttentionOptions&, Tensor&)>;
  const auto told = [](const Differs& differs) {
    return refusal([&] {
      launch(2, [&](Context& context) {
        const ContextParallel sequence(context, 2);
        AttentionOptions options{.heads = 4, .causal = true};
        Tensor x = Tensor::full({4, 4, 16}, 1.0, float16);
        differs(context.rank(), options, x);
        (void)sequence.attention(x, x, x, options);
        context.barrier();
      });
    });
  };
  const std::vector<Differs> all = {
      [](int rank, AttentionOptions& options, Tensor&) { options.heads = rank == 0 ? 2 : 4; },
      [](int rank, AttentionOptions& options, Tensor&) { options.causal = rank == 0; },
      [](int rank, AttentionOptions& options, Tensor&) {
        if (rank == 0) options.window = 2;
      },
      [](int rank, AttentionOptions&, Tensor& x) {
        if (rank == 0) x = cast(x, bfloat16);
      },
      [](int rank, AttentionOptions&, Tensor& x) {
        if (rank == 0) x = reshape(x, {2, 8, 16});
      },
  };
  for (const Differs& differs : all) {
    const std::string text = told(differs);
    EXPECT_NE(text.find("do not agree on their call number"), std::string::npos) << text;
    EXPECT_NE(text.find("this rank was in all_to_all of "), std::string::npos) << text;
    EXPECT_NE(text.find(" for attention of "), std::string::npos) << text;
  }
  EXPECT_EQ(told([](int, AttentionOptions&, Tensor&) {}), "(accepted)");
  const std::string blocks = refusal([] {
    launch(2, [](Context& context) {
      const ContextParallel sequence(context, context.rank() == 0 ? 2 : 1);
    });
  });
  EXPECT_NE(blocks.find("every rank of the context passes the same number"), std::string::npos)
      << blocks;
}

}  // namespace
}  // namespace tessera
