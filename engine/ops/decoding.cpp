// The ops of generation.
#include "engine/ops/cache.h"

#include <cmath>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops/attention_variants.h"
#include "engine/ops/int8_linear.h"

namespace tessera {
namespace {

// Up to this many rows, the time to read the weight exceeds the time of the product.
constexpr std::int64_t few_rows = 8;

void require_no_grad(const char* op) {
  TESSERA_REQUIRE(!grad_enabled(), "{} records nothing for backward; hold a NoGradGuard", op);
}

std::int64_t key_heads_of(const AttentionOptions& options) {
  return options.key_heads == 0 ? options.heads : options.key_heads;
}

void check_cached(const Tensor& q, std::int64_t head_dim, const CachedRows& cache,
                  const AttentionOptions& options) {
  ops::require_floating("cached_attention", q, cache.keys, cache.values);
  const std::int64_t key_heads = key_heads_of(options);
  TESSERA_REQUIRE(q.dimensions() == 3 && q.size(0) == 1 && q.size(2) >= options.heads * head_dim &&
                      options.heads % key_heads == 0 && cache.keys.dimensions() == 2 &&
                      cache.length >= q.size(1) && cache.length <= cache.keys.size(0) &&
                      cache.keys.dtype() == q.dtype() && cache.values.dtype() == q.dtype(),
                  "cached_attention: q {}, {} of the rows {} with {} heads of {} and {} key heads",
                  q.shape().to_string(), cache.length, cache.keys.shape().to_string(),
                  options.heads, head_dim, key_heads);
  ops::require_same_device("cached_attention", q, cache.keys, cache.values);
  TESSERA_REQUIRE(!options.key_mask.defined() && !options.document_starts.defined(),
                  "cached_attention: q {} with a key mask or documents; a cache has one text, all "
                  "of which is seen",
                  q.shape().to_string());
  ops::check_sinks("cached_attention", q, options);
  ops::check_variants("cached_attention", q, options, q.size(1), cache.length);
}

kernels::AttentionShape cached_shape(const Tensor& q, std::int64_t head_dim,
                                     const CachedRows& cache, const AttentionOptions& options) {
  kernels::AttentionShape shape{};
  shape.batch = 1;
  shape.heads = options.heads;
  shape.key_heads = key_heads_of(options);
  shape.head_dim = head_dim;
  shape.query_length = q.size(1);
  shape.key_length = cache.length;
  shape.q_stride = q.size(2);
  shape.k_stride = cache.keys.size(1);
  shape.v_stride = cache.values.size(1);
  shape.value_dim = cache.value_dim == 0 ? head_dim : cache.value_dim;
  shape.out_stride = options.heads * shape.value_dim;
  shape.scale = static_cast<float>(
      options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(head_dim)));
  shape.causal = true;
  ops::set_variants(shape, options);
  shape.dtype = q.dtype();
  return shape;
}

}  // namespace

Tensor decode_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     WeightLayout layout) {
  require_no_grad("decode_linear");
  if (is_int8_product(x, weight)) return int8_linear(x, weight, bias);
  if (weight.defined() && weight.dtype() == uint8) return linear(x, weight, bias, layout);
  ops::require_floating("decode_linear", x, weight);
  const bool transposed = layout == WeightLayout::out_in;
  TESSERA_REQUIRE(weight.dimensions() == 2 && x.size(-1) == weight.size(transposed ? 1 : 0),
                  "decode_linear: x of shape {} and weight of shape {}", x.shape().to_string(),
                  weight.shape().to_string());
  const std::int64_t in = x.size(-1);
  const std::int64_t out_features = weight.size(transposed ? 0 : 1);
  const std::int64_t rows = in == 0 ? 0 : x.elements() / in;
  if (rows > few_rows || x.dtype() != weight.dtype()) return linear(x, weight, bias, layout);
  ops::require_same_device("decode_linear", x, weight, bias);
  Shape shape = x.shape();
  shape[-1] = out_features;
  Tensor out = Tensor::empty(shape, weight.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), gemv,
                 {.x = x.data(),
                  .w = weight.data(),
                  .bias = bias.defined() ? bias.data() : nullptr,
                  .out = out.data(),
                  .rows = rows,
                  .n = out_features,
                  .k = in,
                  .transposed = transposed,
                  .dtype = weight.dtype()});
  return out;
}

Tensor cached_attention(const Tensor& q, std::int64_t head_dim, const CachedRows& cache,
                        const AttentionOptions& options) {
  require_no_grad("cached_attention");
  check_cached(q, head_dim, cache, options);
  kernels::AttentionShape shape = cached_shape(q, head_dim, cache, options);
  const Tensor bias = ops::prepare_bias("cached_attention", q, options, shape);
  Tensor out = Tensor::empty({1, q.size(1), shape.out_stride}, q.dtype(), q.device());
  Tensor log_sum_exp;
  if (options.sinks.defined()) {
    log_sum_exp = Tensor::empty({1, options.heads, q.size(1)},
                                q.dtype() == float64 ? float64 : float32, q.device());
  }
  const auto from = [](const Tensor& rows, std::int64_t offset) {
    return rows.data() + static_cast<std::size_t>(offset) * size_of(rows.dtype());
  };
  if (bias.defined() && !bias.is_meta()) shape.bias = bias.data();
  TESSERA_LAUNCH(q.device(), attention_forward,
                 {.shape = shape,
                  .q = q.data(),
                  .k = from(cache.keys, cache.key_offset),
                  .v = from(cache.values, cache.value_offset),
                  .out = out.data(),
                  .log_sum_exp = log_sum_exp.defined() ? log_sum_exp.data() : nullptr,
                  .inference = true});
  return ops::with_sinks(out, log_sum_exp, options);
}

}  // namespace tessera
