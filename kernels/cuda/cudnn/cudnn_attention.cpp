// Attention's calls of cuDNN: what it covers, and each thread's plans.
#include "kernels/cuda/cudnn/cudnn_attention.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/cudnn/cudnn_attention_graph.h"
#include "kernels/cuda/device/scratch.h"

namespace tessera::kernels::cuda {
namespace {

// The limit of the cache; a program that keeps changing shapes clears it there.
constexpr std::size_t most_plans = 256;

bool cudnn_covers(const AttentionShape& s) {
  return s.dropout == 0 && s.key_mask == nullptr && !has_variants(s) &&
         value_dim_of(s) == s.head_dim && s.batch > 0 && s.query_length > 1 && s.key_length > 1 &&
         (!s.causal || s.query_length == s.key_length);
}

CudnnAttentionGraph graph_of(const AttentionShape& s, CudnnAttentionPass pass) {
  return {.pass = pass,
          .batch = s.batch,
          .heads = s.heads,
          .key_heads = s.key_heads,
          .head_dim = s.head_dim,
          .query_length = s.query_length,
          .key_length = s.key_length,
          .q_stride = s.q_stride,
          .k_stride = s.k_stride,
          .v_stride = s.v_stride,
          .out_stride = s.out_stride,
          .causal = s.causal,
          .dtype = s.dtype};
}

// A thread's state for the attention of a device: a handle, and a plan for each graph. Only its
// thread uses it.
class AttentionPlans {
 public:
  static AttentionPlans& of_this_thread(const CudnnLibrary& library, const Context& context) {
    static thread_local std::vector<std::unique_ptr<AttentionPlans>> all;
    for (const auto& plans : all) {
      if (plans->cudnn_ == library.functions && plans->device_ == context.device) return *plans;
    }
    all.push_back(std::make_unique<AttentionPlans>(library.functions, context.device));
    return *all.back();
  }

  AttentionPlans(std::shared_ptr<const Cudnn> cudnn, int device)
      : cudnn_(std::move(cudnn)), device_(device), handle_(nullptr, cudnn_->cudnnDestroy) {
    CudnnHandle handle = nullptr;
    check_cudnn(*cudnn_, cudnn_->cudnnCreate(&handle), "cudnnCreate");
    handle_.reset(handle);
  }

  // Null if cuDNN has no plan for the graph.
  const CudnnPlan* plan_of(const CudnnAttentionGraph& graph, bool required) {
    auto known = std::find_if(plans_.begin(), plans_.end(),
                              [&](const Planned& planned) { return planned.graph == graph; });
    if (known == plans_.end()) {
      if (plans_.size() >= most_plans) plans_.clear();
      plans_.push_back(make_plan(graph));
      known = std::prev(plans_.end());
    }
    const Planned& planned = *known;
    TESSERA_CHECK(planned.plan != nullptr || !required, ErrorCode::runtime,
                  "TESSERA_CUDA_ATTENTION is cudnn, but cuDNN does not compute this attention "
                  "({}): {}; set TESSERA_CUDA_ATTENTION=auto",
                  describe(graph), planned.problem);
    return planned.plan.get();
  }

  void run(const CudnnPlan& plan, cudaStream_t stream,
           const std::vector<CudnnPlan::Binding>& bindings, void* workspace) const {
    check_cudnn(*cudnn_, cudnn_->cudnnSetStream(handle_.get(), stream), "cudnnSetStream");
    plan.run(handle_.get(), bindings, workspace);
  }

 private:
  struct Planned {
    CudnnAttentionGraph graph;
    std::unique_ptr<CudnnPlan> plan;
    std::string problem;  // if there is no plan
  };

  [[nodiscard]] Planned make_plan(const CudnnAttentionGraph& graph) const {
    try {
      return {graph,
              std::make_unique<CudnnPlan>(make_attention_plan(cudnn_, handle_.get(), graph)),
              {}};
    } catch (const Error& error) {
      return {graph, nullptr, error.what()};
    }
  }

  std::shared_ptr<const Cudnn> cudnn_;
  int device_;
  std::unique_ptr<void, CudnnStatus (*)(CudnnHandle)> handle_;
  std::vector<Planned> plans_;  // a program has few shapes
};

// The numbers that the host gives to a graph.
struct Values {
  float scale;
  float one = 1;
  float masked = -std::numeric_limits<float>::infinity();

  void bind(std::vector<CudnnPlan::Binding>& bindings, const CudnnAttentionGraph& graph) {
    bindings.push_back({attention_id::scale, &scale});
    if (graph.causal) bindings.push_back({attention_id::masked, &masked});
    if (graph.pass == CudnnAttentionPass::backward) {
      bindings.push_back({attention_id::one, &one});
    }
  }
};

// Bindings are not const because outputs are among them.
void* place(const void* base, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(const_cast<void*>(base)) +
         elements * static_cast<std::int64_t>(size_of(dtype));
}

// The largest divisor of `count` that is not above `most`, at least 1.
std::int64_t divisor_up_to(std::int64_t count, std::int64_t most) {
  for (std::int64_t part = std::min(count, most); part > 1; --part) {
    if (count % part == 0) return part;
  }
  return 1;
}

// The samples and key heads that a graph of the backward computes.
struct BackwardPart {
  std::int64_t samples, key_heads;
};

BackwardPart backward_part(const AttentionShape& s, std::size_t score_bytes) {
  const auto up = [](std::int64_t length, std::int64_t tile) {
    return (length + tile - 1) / tile * tile;
  };
  const std::int64_t group = s.heads / s.key_heads * up(s.query_length, 64) *
                             up(s.key_length, 128) * static_cast<std::int64_t>(size_of(s.dtype));
  const std::int64_t groups =
      std::max<std::int64_t>(static_cast<std::int64_t>(score_bytes) / group, 1);
  if (groups < s.key_heads) return {1, divisor_up_to(s.key_heads, groups)};
  return {divisor_up_to(s.batch, groups / s.key_heads), s.key_heads};
}

}  // namespace

bool attention_forward_cudnn(const AttentionForward& a, Context& context,
                             const CudnnLibrary& library, bool required) {
  const AttentionShape& s = a.shape;
  if (!cudnn_covers(s) || !takes_tensor_cores(context, a)) return false;
  AttentionPlans& plans = AttentionPlans::of_this_thread(library, context);
  const CudnnAttentionGraph graph = graph_of(s, CudnnAttentionPass::forward);
  const CudnnPlan* const plan = plans.plan_of(graph, required);
  if (plan == nullptr) return false;
  ScratchArrays scratch;
  const auto workspace = scratch.add<std::byte>(static_cast<std::int64_t>(plan->workspace_bytes()));
  const auto log_sum_exp = scratch.add<std::byte>(
      a.log_sum_exp == nullptr ? static_cast<std::int64_t>(statistic_bytes(s)) : 0);
  scratch.take(context);
  std::vector<CudnnPlan::Binding> bindings{
      {attention_id::q, const_cast<void*>(a.q)},
      {attention_id::k, const_cast<void*>(a.k)},
      {attention_id::v, const_cast<void*>(a.v)},
      {attention_id::out, a.out},
      {attention_id::log_sum_exp, a.log_sum_exp != nullptr ? a.log_sum_exp : scratch[log_sum_exp]}};
  Values values{s.scale};
  values.bind(bindings, graph);
  plans.run(*plan, context.stream, bindings, scratch[workspace]);
  return true;
}

bool attention_backward_cudnn(const AttentionBackward& a, Context& context,
                              const CudnnLibrary& library, bool required, std::size_t score_bytes) {
  const AttentionShape& s = a.shape;
  if (!cudnn_covers(s) || a.dlog_sum_exp != nullptr || context.compute_capability >= 100 ||
      !takes_tensor_cores(context, a)) {
    return false;
  }
  const BackwardPart part = backward_part(s, score_bytes);
  const std::int64_t group = s.heads / s.key_heads, heads = part.key_heads * group;
  CudnnAttentionGraph graph = graph_of(s, CudnnAttentionPass::backward);
  graph.batch = part.samples;
  graph.heads = heads;
  graph.key_heads = part.key_heads;
  AttentionPlans& plans = AttentionPlans::of_this_thread(library, context);
  const CudnnPlan* const plan = plans.plan_of(graph, required);
  if (plan == nullptr) return false;
  ScratchArrays scratch;
  const auto row_products = scratch.add<float>(part.samples * heads * s.query_length);
  const auto workspace = scratch.add<std::byte>(static_cast<std::int64_t>(plan->workspace_bytes()));
  scratch.take(context);
  for (std::int64_t sample = 0; sample < s.batch; sample += part.samples) {
    for (std::int64_t key_head = 0; key_head < s.key_heads; key_head += part.key_heads) {
      const std::int64_t query = sample * s.query_length, key = sample * s.key_length;
      const std::int64_t column = key_head * group * s.head_dim;
      const std::int64_t key_column = key_head * s.head_dim;
      const auto queries = [&](const void* base, std::int64_t stride) {
        return place(base, query * stride + column, s.dtype);
      };
      const auto keys = [&](const void* base, std::int64_t stride) {
        return place(base, key * stride + key_column, s.dtype);
      };
      std::vector<CudnnPlan::Binding> bindings{
          {attention_id::q, queries(a.q, s.q_stride)},
          {attention_id::k, keys(a.k, s.k_stride)},
          {attention_id::v, keys(a.v, s.v_stride)},
          {attention_id::out, queries(a.out, s.out_stride)},
          {attention_id::dout, queries(a.dout, s.out_stride)},
          {attention_id::log_sum_exp,
           place(a.log_sum_exp, query * s.heads + key_head * group * s.query_length, float32)},
          {attention_id::row_products, scratch[row_products]},
          {attention_id::dq, queries(a.dq, s.q_stride)},
          {attention_id::dk, keys(a.dk, s.k_stride)},
          {attention_id::dv, keys(a.dv, s.v_stride)}};
      Values values{s.scale};
      values.bind(bindings, graph);
      plans.run(*plan, context.stream, bindings, scratch[workspace]);
    }
  }
  return true;
}

}  // namespace tessera::kernels::cuda
