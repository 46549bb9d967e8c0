// Attention's use of cuDNN, on a stand-in that computes in the host's memory: the graphs, strides,
// parts, the choice between cuDNN and the own kernels, and what is said when cuDNN is not there.
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cuda/attention/attention_near.h"
#include "cuda/attention/attention_runs.h"
#include "cuda/attention/cudnn_stand_in.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"

namespace tessera::testing {
namespace {

using cudnn::record;
using kernels::cuda::AttentionWay;
using kernels::cuda::CudnnLibrary;

// Its memory is the host's; the stand-in needs no device.
class HostQueue final : public kernels::cuda::Context {
 public:
  explicit HostQueue(int capability = 90) { compute_capability = capability; }
  void* scratch(std::size_t bytes) override {
    memory_.resize(bytes);
    return memory_.data();
  }

 private:
  std::vector<std::byte> memory_;
};

class CudnnAttention : public ::testing::Test {
 protected:
  CudnnAttention() { record = cudnn::Record{}; }

  // The results of cuDNN, with gradients; what it does not cover stays untouched.
  AttentionResults run(const AttentionProblem& problem,
                       std::size_t score_bytes = kernels::cuda::most_score_bytes) {
    return run_on_host(
        problem, AttentionRun::backward,
        [&](const kernels::AttentionForward& a) {
          forward_done_ = attention_forward_cudnn(a, context_, library_, false);
        },
        [&](const kernels::AttentionBackward& a) {
          backward_done_ = attention_backward_cudnn(a, context_, library_, false, score_bytes);
        });
  }

  void expect_like_the_cpu(const AttentionProblem& problem) {
    SCOPED_TRACE(problem.text());
    const AttentionResults got = run(problem);
    EXPECT_TRUE(forward_done_);
    EXPECT_TRUE(backward_done_);
    expect_near(problem.dtype(), got, run_on_cpu(problem, AttentionRun::backward));
  }

  HostQueue context_;
  const CudnnLibrary library_ = kernels::cuda::cudnn_library_of(cudnn::stand_in(), "its file");
  bool forward_done_ = false, backward_done_ = false;
};

TEST_F(CudnnAttention, ComputesWhatTheCpuComputes) {
  for (const AttentionCase& sizes : {
           AttentionCase{.about = "rows with a gap", .batch = 2},
           AttentionCase{.about = "packed",
           .head_dim = 48,
           .queries = 65,
           .keys = 65,
           .packed = true,
           .padding = 0,
           .batch = 2},
           AttentionCase{.about = "grouped keys", .heads = 6, .key_heads = 2, .head_dim = 16},
           AttentionCase{.about = "one key head, packed",
           .heads = 3,
           .key_heads = 1,
           .head_dim = 128,
           .queries = 20,
           .keys = 20,
           .packed = true,
           .batch = 3},
       }) {
    for (const DType dtype : {bfloat16, float16}) {
      for (const bool causal : {false, true}) expect_like_the_cpu({sizes, causal, dtype});
    }
  }
  expect_like_the_cpu(
      {{.about = "more keys", .head_dim = 32, .queries = 20, .keys = 50}, false, bfloat16});
}

TEST_F(CudnnAttention, NeedsNoMemoryForTheLogSumExp) {
  const AttentionProblem problem({.about = "inference", .batch = 2}, true, bfloat16);
  const AttentionResults with = run(problem);
  const AttentionResults without = run_on_host(
      problem, AttentionRun::forward_without_log_sum_exp,
      [&](const kernels::AttentionForward& a) {
        EXPECT_TRUE(attention_forward_cudnn(a, context_, library_, true));
      },
      [](const kernels::AttentionBackward&) {});
  EXPECT_EQ(without.out, with.out);
}

// Samples are divided first, then the heads of a sample; a group of heads stays together.
TEST_F(CudnnAttention, PartsOfTheBackwardGiveTheSameBits) {
  const AttentionProblem problem(
      {.about = "parts", .heads = 8, .key_heads = 4, .head_dim = 16, .packed = true, .batch = 6},
      true, bfloat16);
  const AttentionResults whole = run(problem);
  EXPECT_EQ(record.executions, 2) << "a forward and a backward";
  constexpr std::size_t group = std::size_t{2} * 64 * 128 * 2;  // of two heads, in whole tiles
  for (const auto& [bytes, parts] :
       {std::pair<std::size_t, int>{4 * group * 4, 2}, {4 * group, 6}, {2 * group, 12}, {1, 24}}) {
    record.executions = 0;
    EXPECT_EQ(run(problem, bytes).gradients, whole.gradients);
    EXPECT_EQ(record.executions, 1 + parts) << bytes;
  }
}

TEST_F(CudnnAttention, LeavesOtherCallsToTheOwnKernels) {
  const auto expect_left = [&](const AttentionCase& sizes, bool causal, DType dtype) {
    SCOPED_TRACE(sizes.about);
    (void)run({sizes, causal, dtype});
    EXPECT_FALSE(forward_done_);
    EXPECT_FALSE(backward_done_);
  };
  expect_left({.about = "fp32"}, true, float32);
  expect_left({.about = "fp64"}, true, float64);
  expect_left({.about = "a mask", .mask = true}, false, bfloat16);
  expect_left({.about = "dropout", .dropout = 0.1f}, true, bfloat16);
  expect_left({.about = "a window", .window = 8}, true, bfloat16);
  expect_left({.about = "documents", .document = 10}, true, bfloat16);
  expect_left({.about = "a soft cap", .soft_cap = 5}, true, bfloat16);
  expect_left({.about = "one query", .queries = 1}, false, bfloat16);
  expect_left({.about = "queries behind the keys", .queries = 20}, true, bfloat16);
  expect_left({.about = "a large head", .head_dim = 136}, true, bfloat16);
  expect_left({.about = "rows off 16 bytes", .padding = 3}, true, bfloat16);
  context_.compute_capability = 75;
  expect_left({.about = "an old device"}, true, bfloat16);
  EXPECT_EQ(record.graphs, 0);
  // Newer devices have no backward with the same bits each time.
  context_.compute_capability = 100;
  (void)run({{.about = "a new device"}, true, bfloat16});
  EXPECT_TRUE(forward_done_);
  EXPECT_FALSE(backward_done_);
}

TEST_F(CudnnAttention, PlansAreMadeOnceForAShapeAndFreedWithTheirThread) {
  std::thread([&] {
    const AttentionProblem one({.about = "one"}, true, bfloat16);
    const AttentionProblem other({.about = "other", .batch = 2}, true, bfloat16);
    for (int i = 0; i < 3; ++i) (void)run(one);
    EXPECT_EQ(record.graphs, 2) << "a forward and a backward";
    (void)run(other);
    EXPECT_EQ(record.graphs, 4);
    EXPECT_EQ(record.created_handles, 1);
  }).join();
  EXPECT_EQ(record.handles, 0);
  EXPECT_EQ(record.descriptors, 0);
}

TEST_F(CudnnAttention, WhatItRefusesIsRememberedAndNotAnErrorUnlessItWasRequested) {
  std::thread([&] {
    const AttentionProblem problem({.about = "refused"}, true, bfloat16);
    for (const bool has_engine : {false, true}) {
      const DType dtype = has_engine ? bfloat16 : float16;
      record.has_engine = has_engine;
      record.plan_status = 3000;
      record.graphs = 0;
      for (int i = 0; i < 2; ++i) (void)run({{.about = "refused"}, true, dtype});
      EXPECT_FALSE(forward_done_);
      EXPECT_FALSE(backward_done_);
      EXPECT_EQ(record.graphs, 2) << "each is tried once";
    }
    const auto required = [&](const kernels::AttentionForward& a) {
      (void)attention_forward_cudnn(a, context_, library_, true);
    };
    try {
      (void)run_on_host(problem, AttentionRun::forward, required,
                        [](const kernels::AttentionBackward&) {});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const char* part :
           {"TESSERA_CUDA_ATTENTION is cudnn", "the stand-in refuses", "head dim 64", "bfloat16"}) {
        EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
      }
    }
  }).join();
  EXPECT_EQ(record.descriptors, 0);
}

TEST_F(CudnnAttention, NamesTheCallThatFailed) {
  const AttentionProblem problem({.about = "failed"}, true, bfloat16);
  record.execute_status = 5000;
  try {
    (void)run(problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::runtime);
    EXPECT_NE(std::string(error.what()).find("cudnnBackendExecute failed"), std::string::npos)
        << error.what();
  }
}

TEST_F(CudnnAttention, IsNamedWithItsVersionOrTheReason) {
  using kernels::cuda::describe_attention;
  EXPECT_EQ(describe_attention(AttentionWay::automatic, library_), "cuDNN 9.19.0 (its file)");
  EXPECT_EQ(describe_attention(AttentionWay::own, library_),
            "our own kernels (TESSERA_CUDA_ATTENTION=own)");
  auto old = cudnn::stand_in();
  old.cudnnGetVersion = [] { return std::size_t{91002}; };
  const CudnnLibrary too_old = kernels::cuda::cudnn_library_of(old, "a file");
  EXPECT_EQ(too_old.functions, nullptr);
  EXPECT_EQ(describe_attention(AttentionWay::automatic, too_old),
            "our own kernels (no cuDNN: cuDNN 9.10.2 (a file) is older than 9.16.0)");
  const CudnnLibrary missing = kernels::cuda::load_cudnn({"libtessera-absent.so.9"});
  EXPECT_EQ(missing.functions, nullptr);
  EXPECT_NE(missing.problem.find("libtessera-absent.so.9"), std::string::npos) << missing.problem;
  // A library of that name that lacks the functions.
  const CudnnLibrary other = kernels::cuda::load_cudnn({"libm.so.6"});
  EXPECT_EQ(other.functions, nullptr);
  EXPECT_NE(other.problem.find("cudnnGetVersion"), std::string::npos) << other.problem;
}

TEST_F(CudnnAttention, IsAnErrorIfRequestedAndMissing) {
  const CudnnLibrary missing{nullptr, "it is gone"};
  const AttentionProblem problem({.about = "missing"}, true, bfloat16);
  const auto run_required = [&](const kernels::AttentionForward& a) {
    attention_forward_by(AttentionWay::cudnn, a, context_, missing);
  };
  try {
    (void)run_on_host(problem, AttentionRun::forward, run_required,
                      [](const kernels::AttentionBackward&) {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    EXPECT_NE(std::string(error.what()).find("it is gone"), std::string::npos) << error.what();
  }
}

TEST_F(CudnnAttention, CallsAreCountedByWhatComputedThem) {
  const AttentionProblem problem({.about = "counted"}, true, bfloat16);
  const auto run_by = [&](AttentionWay way) {
    (void)run_on_host(
        problem, AttentionRun::backward,
        [&](const kernels::AttentionForward& a) {
          attention_forward_by(way, a, context_, library_);
        },
        [&](const kernels::AttentionBackward& a) {
          attention_backward_by(way, a, context_, library_);
        });
  };
  run_by(AttentionWay::automatic);
  run_by(AttentionWay::cudnn);
  EXPECT_EQ(context_.attention.library, 4);
  EXPECT_EQ(context_.attention.own, 0);
}

TEST(AttentionWay, IsParsed) {
  using kernels::cuda::attention_way_of;
  EXPECT_EQ(attention_way_of(nullptr), AttentionWay::automatic);
  EXPECT_EQ(attention_way_of(""), AttentionWay::automatic);
  EXPECT_EQ(attention_way_of("auto"), AttentionWay::automatic);
  EXPECT_EQ(attention_way_of("own"), AttentionWay::own);
  EXPECT_EQ(attention_way_of("cudnn"), AttentionWay::cudnn);
  EXPECT_THROW((void)attention_way_of("fast"), Error);
}

}  // namespace
}  // namespace tessera::testing
