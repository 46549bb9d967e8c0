// The graphs of attention for cuDNN. cuDNN recognises attention in these operations and computes a
// graph with one or two kernels, which store no scores except in the backward.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "kernels/cuda/cudnn/cudnn_graph.h"

namespace tessera::kernels::cuda {

// The identifiers with which a run binds addresses.
namespace attention_id {
enum Id : std::int64_t {
  q = 1,
  k,
  v,
  out,
  log_sum_exp,
  dout,
  dq,
  dk,
  dv,
  row_products,  // scratch memory, fp32 [batch, heads, query_length]
  scale,         // values
  one,
  masked,
};
}  // namespace attention_id

enum class CudnnAttentionPass : std::uint8_t { forward, backward };

// Everything that a plan depends on; the terms are AttentionShape's.
struct CudnnAttentionGraph {
  CudnnAttentionPass pass;
  std::int64_t batch, heads, key_heads, head_dim;
  std::int64_t query_length, key_length;
  std::int64_t q_stride, k_stride, v_stride, out_stride;
  bool causal;
  DType dtype;
  bool operator==(const CudnnAttentionGraph&) const = default;
};

std::string describe(const CudnnAttentionGraph& graph);

// Throws Error(runtime) with cuDNN's text if cuDNN has no plan.
CudnnPlan make_attention_plan(const std::shared_ptr<const Cudnn>& cudnn, CudnnHandle handle,
                              const CudnnAttentionGraph& graph);

}  // namespace tessera::kernels::cuda
