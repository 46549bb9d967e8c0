// Attention's sinks and biases.
#include "engine/ops/attention_variants.h"

#include "engine/tensor_ops.h"

namespace tessera::ops {

void check_sinks(const char* op, const Tensor& q, const AttentionOptions& options) {
  if (!options.sinks.defined()) return;
  require_floating(op, options.sinks);
  require_same_device(op, q, options.sinks);
  TESSERA_REQUIRE(options.sinks.shape() == Shape{options.heads},
                  "{}: sinks of shape {} for {} heads; one number for each query head", op,
                  options.sinks.shape().to_string(), options.heads);
}

// A further key with the score of its head's sink and a value of 0 leaves e^lse / (e^lse + e^sink).
Tensor with_sinks(const Tensor& out, const Tensor& log_sum_exp, const AttentionOptions& options) {
  if (!options.sinks.defined()) return out;
  const std::int64_t heads = options.heads;
  const Tensor sinks = reshape(cast(options.sinks, log_sum_exp.dtype()), {heads, 1});
  const Tensor shares = transpose(sigmoid(log_sum_exp - sinks), 1, 2);
  const Tensor rows =
      cast(reshape(out, {out.size(0), out.size(1), heads, out.size(2) / heads}), shares.dtype());
  return reshape(cast(rows * unsqueeze(shares, -1), out.dtype()), out.shape());
}

Tensor prepare_bias(const char* op, const Tensor& q, const AttentionOptions& options,
                    kernels::AttentionShape& shape) {
  const Tensor& bias = options.bias;
  if (!bias.defined()) return {};
  require_floating(op, bias);
  require_same_device(op, q, bias);
  const int dimensions = bias.dimensions();
  const auto is_one_or = [&](int from_end, std::int64_t size) {
    if (dimensions < from_end) return true;
    return bias.size(-from_end) == 1 || bias.size(-from_end) == size;
  };
  TESSERA_REQUIRE(dimensions >= 2 && dimensions <= 4 && bias.size(-2) == shape.query_length &&
                      bias.size(-1) == shape.key_length && is_one_or(3, shape.heads) &&
                      is_one_or(4, shape.batch),
                  "{}: a bias of shape {} for queries {} of {} heads and {} keys; it is [batch or "
                  "1, heads or 1, queries, keys], without leading dimensions if they are 1",
                  op, bias.shape().to_string(), q.shape().to_string(), shape.heads,
                  shape.key_length);
  const std::int64_t matrix = shape.query_length * shape.key_length;
  const std::int64_t heads = dimensions < 3 ? 1 : bias.size(-3);
  shape.bias_head_stride = heads == 1 ? 0 : matrix;
  shape.bias_batch_stride = dimensions < 4 || bias.size(-4) == 1 ? 0 : heads * matrix;
  return cast(bias, shape.dtype == float64 ? float64 : float32);
}

}  // namespace tessera::ops

namespace tessera {

// Row i of the matrix is the vector of distances, moved by i. The vector repeated for each query
// and read as rows that are one element shorter is that.
Tensor distance_bias(const Tensor& by_distance, std::int64_t queries, std::int64_t keys) {
  ops::require_floating("distance_bias", by_distance);
  TESSERA_REQUIRE(by_distance.dimensions() == 2 && by_distance.size(0) % 2 == 1 && queries >= 1 &&
                      queries <= keys && 2 * keys - 1 <= by_distance.size(0),
                  "distance_bias: distances of shape {} for {} queries and {} keys; [2 * L - 1, "
                  "heads] with L of at least the keys, and no more queries than keys",
                  by_distance.shape().to_string(), queries, keys);
  const std::int64_t heads = by_distance.size(1), width = queries + keys - 1;
  const std::int64_t nearest = (by_distance.size(0) - 1) / 2;  // the row of distance 0
  const Tensor seen = transpose(narrow(by_distance, 0, nearest - keys + 1, width));
  Tensor row = reshape(seen, {heads, 1, width});
  if (queries == 1) return row;
  const Tensor rows = reshape(expand(row, {heads, queries, width}), {heads, queries * width});
  const Tensor moved = narrow(rows, 1, queries - 1, queries * (width - 1));
  return narrow(reshape(moved, {heads, queries, width - 1}), 2, 0, keys);
}

}  // namespace tessera
