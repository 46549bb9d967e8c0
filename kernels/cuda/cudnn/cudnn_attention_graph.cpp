// The graphs of attention, as NVIDIA's documentation of cuDNN's fused attention describes them:
// operations that its engines recognise.
#include "kernels/cuda/cudnn/cudnn_attention_graph.h"

#include "base/error.h"

namespace tessera::kernels::cuda {
namespace {

using Tensor = CudnnGraph::Tensor;
using Sizes = CudnnGraph::Sizes;

// The tensors of a graph, whose dimensions are [batch, heads, rows, columns].
class AttentionGraph {
 public:
  AttentionGraph(const std::shared_ptr<const Cudnn>& cudnn, const CudnnAttentionGraph& sizes)
      : graph_(cudnn), g_(sizes), type_(cudnn_type_of(sizes.dtype)) {}

  CudnnPlan forward(CudnnHandle handle) {
    const Tensor q = queries(attention_id::q, g_.q_stride);
    const Tensor scores = masked(scaled(scores_of(q)));
    const Tensor maximum = graph_.passed(CudnnType::float32, row_sizes());
    graph_.reduce(CudnnReduction::max, scores, maximum);
    const Tensor exponent = score(), exponential = score();
    graph_.pointwise(CudnnPointwise::sub, scores, maximum, exponent);
    graph_.pointwise(CudnnPointwise::exp, exponent, exponential);
    const Tensor sum = graph_.passed(CudnnType::float32, row_sizes());
    graph_.reduce(CudnnReduction::add, exponential, sum);
    const Tensor logarithm = graph_.passed(CudnnType::float32, row_sizes());
    graph_.pointwise(CudnnPointwise::log, sum, logarithm);
    graph_.pointwise(CudnnPointwise::add, maximum, logarithm, log_sum_exp());
    const Tensor probability = graph_.passed(type_, score_sizes());
    graph_.pointwise(CudnnPointwise::div, exponential, sum, probability);
    graph_.matmul(probability, keys(attention_id::v, g_.v_stride),
                  queries(attention_id::out, g_.out_stride));
    return graph_.plan(handle);
  }

  CudnnPlan backward(CudnnHandle handle) {
    const Tensor q = queries(attention_id::q, g_.q_stride);
    const Tensor dout = queries(attention_id::dout, g_.out_stride);
    const Tensor row_products = products_of_rows(dout);
    const Tensor exponent = score(), probability = score();
    const Tensor scores = scaled(scores_of(q));
    graph_.pointwise(CudnnPointwise::sub, scores, log_sum_exp(), exponent);
    graph_.pointwise(CudnnPointwise::exp, masked(exponent), probability);
    key_gradient(transposed(probability), dout, attention_id::dv, g_.v_stride);

    const Tensor dprobability = score(), difference = score(), dscaled = score(), dscore = score();
    graph_.matmul(dout, transposed_keys(attention_id::v, g_.v_stride), dprobability);
    graph_.pointwise(CudnnPointwise::sub, dprobability, row_products, difference);
    graph_.pointwise(CudnnPointwise::mul, difference, probability, dscaled);
    graph_.pointwise(CudnnPointwise::mul, dscaled, *scale_, dscore);
    key_gradient(transposed(dscore), q, attention_id::dk, g_.k_stride);

    const Tensor k = graph_.passed(CudnnType::float32, key_sizes(), key_strides(g_.k_stride));
    graph_.reshape(*transposed_k_, k);
    graph_.matmul(dscore, k, queries(attention_id::dq, g_.q_stride));
    return graph_.plan(handle);
  }

 private:
  [[nodiscard]] Sizes key_sizes() const {
    return {g_.batch, g_.key_heads, g_.key_length, g_.head_dim};
  }
  [[nodiscard]] Sizes key_strides(std::int64_t stride) const {
    return {g_.key_length * stride, g_.head_dim, stride, 1};
  }
  [[nodiscard]] Sizes score_sizes() const {
    return {g_.batch, g_.heads, g_.query_length, g_.key_length};
  }
  [[nodiscard]] Sizes row_sizes() const { return {g_.batch, g_.heads, g_.query_length, 1}; }
  [[nodiscard]] Sizes row_strides() const {
    return {g_.heads * g_.query_length, g_.query_length, 1, 1};
  }

  Tensor queries(std::int64_t id, std::int64_t stride) {
    return graph_.stored(id, type_, {g_.batch, g_.heads, g_.query_length, g_.head_dim},
                         {g_.query_length * stride, g_.head_dim, stride, 1});
  }
  Tensor keys(std::int64_t id, std::int64_t stride) {
    return graph_.stored(id, type_, key_sizes(), key_strides(stride));
  }
  Tensor transposed_keys(std::int64_t id, std::int64_t stride) {
    return graph_.stored(id, type_, {g_.batch, g_.key_heads, g_.head_dim, g_.key_length},
                         {g_.key_length * stride, g_.head_dim, 1, stride});
  }
  Tensor log_sum_exp() {
    return graph_.stored(attention_id::log_sum_exp, CudnnType::float32, row_sizes(), row_strides());
  }
  Tensor score() { return graph_.passed(CudnnType::float32, score_sizes()); }

  Tensor scores_of(const Tensor& q) {
    const Tensor scores = score();
    transposed_k_ = transposed_keys(attention_id::k, g_.k_stride);
    graph_.matmul(q, *transposed_k_, scores);
    return scores;
  }

  Tensor scaled(const Tensor& scores) {
    scale_ = graph_.value(attention_id::scale);
    const Tensor result = score();
    graph_.pointwise(CudnnPointwise::mul, scores, *scale_, result);
    return result;
  }

  // Scores above the diagonal become minus infinity.
  Tensor masked(const Tensor& scores) {
    if (!g_.causal) return scores;
    const Tensor row = graph_.passed(CudnnType::int32, score_sizes());
    const Tensor column = graph_.passed(CudnnType::int32, score_sizes());
    const Tensor visible = graph_.passed(CudnnType::boolean, score_sizes());
    const Tensor result = score();
    graph_.index(2, scores, row);
    graph_.index(3, scores, column);
    graph_.pointwise(CudnnPointwise::greater_or_equal, row, column, visible);
    graph_.select(scores, graph_.value(attention_id::masked), visible, result);
    return result;
  }

  // The sums of out * dout over the elements of a head.
  Tensor products_of_rows(const Tensor& dout) {
    const Tensor product =
        graph_.passed(CudnnType::float32, {g_.batch, g_.heads, g_.query_length, g_.head_dim},
                      {g_.heads * g_.query_length * g_.head_dim, g_.query_length * g_.head_dim,
                       g_.heads * g_.head_dim, 1});
    graph_.pointwise(CudnnPointwise::mul, dout, queries(attention_id::out, g_.out_stride), product);
    const Tensor sum = graph_.passed(CudnnType::float32, row_sizes());
    graph_.reduce(CudnnReduction::add, product, sum);
    // The engines expect a factor here, which is that of dropout.
    const Tensor stored =
        graph_.stored(attention_id::row_products, CudnnType::float32, row_sizes(), row_strides());
    graph_.pointwise(CudnnPointwise::mul, sum, graph_.value(attention_id::one), stored);
    return stored;
  }

  Tensor transposed(const Tensor& scores) {
    const Tensor result = graph_.passed(type_, {g_.batch, g_.heads, g_.key_length, g_.query_length},
                                        {g_.heads * g_.query_length * g_.key_length,
                                         g_.query_length * g_.key_length, 1, g_.key_length});
    graph_.reshape(scores, result);
    return result;
  }

  // weights * rows: the gradient of keys or values, summed over the query heads of a group.
  void key_gradient(const Tensor& weights, const Tensor& rows, std::int64_t id,
                    std::int64_t stride) {
    const Tensor gradient = keys(id, stride);
    if (g_.heads == g_.key_heads) return graph_.matmul(weights, rows, gradient);
    const Tensor of_heads = graph_.passed(type_, {g_.batch, g_.heads, g_.key_length, g_.head_dim});
    graph_.matmul(weights, rows, of_heads);
    graph_.reduce(CudnnReduction::add, of_heads, gradient);
  }

  CudnnGraph graph_;
  const CudnnAttentionGraph& g_;
  CudnnType type_;
  std::optional<Tensor> scale_, transposed_k_;
};

}  // namespace

std::string describe(const CudnnAttentionGraph& g) {
  return fmt::format(
      "{}{}, batch {}, heads {}, key heads {}, head dim {}, lengths {} and {}, row strides {}, {}, "
      "{}, {}, {}",
      g.pass == CudnnAttentionPass::backward ? "backward" : "forward", g.causal ? ", causal" : "",
      g.batch, g.heads, g.key_heads, g.head_dim, g.query_length, g.key_length, g.q_stride,
      g.k_stride, g.v_stride, g.out_stride, name_of(g.dtype));
}

CudnnPlan make_attention_plan(const std::shared_ptr<const Cudnn>& cudnn, CudnnHandle handle,
                              const CudnnAttentionGraph& graph) {
  AttentionGraph operations(cudnn, graph);
  return graph.pass == CudnnAttentionPass::backward ? operations.backward(handle)
                                                    : operations.forward(handle);
}

}  // namespace tessera::kernels::cuda
