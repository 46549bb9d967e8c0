// The parts that attention's forward and backward share.
#include "kernels/cpu/attention/attention_head.h"

#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/matmul/matmul_convert.h"
#include "kernels/cpu/matmul/matmul_onednn.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

DType operand_type(DType dtype) {
  if (dtype == float64) return float64;
  return dtype == bfloat16 && has_bfloat16_products() ? bfloat16 : float32;
}

void check(const AttentionShape& s, const char* kernel) {
  const auto needs = [&](bool condition, const char* what) {
    TESSERA_REQUIRE(
        condition,
        "{}: {} (batch {}, heads {}, key heads {}, head dim {}, value dim {}, lengths {} and {}, "
        "row strides {}, {}, {}, {}, dropout {}, {})",
        kernel, what, s.batch, s.heads, s.key_heads, s.head_dim, value_dim_of(s), s.query_length,
        s.key_length, s.q_stride, s.k_stride, s.v_stride, s.out_stride, s.dropout,
        name_of(s.dtype));
  };
  needs(is_floating(s.dtype), "the tensors must be of a floating-point type");
  needs(s.batch >= 0 && s.query_length >= 0 && s.key_length >= 0, "a size is negative");
  needs(s.heads > 0 && s.key_heads > 0 && s.head_dim > 0 && s.value_dim >= 0,
        "a size is not positive");
  needs(s.heads % s.key_heads == 0, "heads must be a multiple of key heads");
  const std::int64_t value_dim = value_dim_of(s);
  needs(s.q_stride >= s.heads * s.head_dim && s.k_stride >= s.key_heads * s.head_dim &&
            s.v_stride >= s.key_heads * value_dim && s.out_stride >= s.heads * value_dim,
        "a row stride is less than a row");
  needs(s.dropout >= 0.0f && s.dropout < 1.0f, "dropout must lie in [0, 1)");
  needs(s.window >= 0 && (s.window == 0 || s.causal), "a window must be positive and causal");
  needs(s.soft_cap >= 0.0f, "the soft cap must be positive");
  if (s.document_starts == nullptr) return;
  needs(s.causal, "documents must be causal");
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int32_t* const starts = s.document_starts + b * s.key_length;
    for (std::int64_t i = 0; i < s.key_length; ++i) {
      needs(starts[i] >= (i == 0 ? 0 : starts[i - 1]) && starts[i] <= i,
            "document_starts must not decrease, nor start a document after its position");
    }
  }
}

template <class C>
void fill_key_bias(const std::uint8_t* mask, std::int64_t keys, C* bias) {
  for (std::int64_t j = 0; j < keys; ++j) {
    bias[j] = mask[j] != 0 ? C{0} : -std::numeric_limits<C>::infinity();
  }
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& arguments, const char* kernel)
    : shape(arguments),
      value_dim(value_dim_of(arguments)),
      group(0),
      operand(operand_type(arguments.dtype)),
      compute(arguments.dtype == float64 ? float64 : float32),
      dropout_threshold_(static_cast<std::uint32_t>(arguments.dropout * 0x1p32)) {
  check(shape, kernel);
  group = shape.heads / shape.key_heads;
}

HeadRows AttentionPlan::queries(const void* base, std::int64_t stride, std::int64_t batch,
                                std::int64_t head, std::int64_t width) const {
  return {element(base, shape.dtype, batch * shape.query_length * stride + head * width), stride,
          width};
}

HeadRows AttentionPlan::keys(const void* base, std::int64_t stride, std::int64_t batch,
                             std::int64_t key_head, std::int64_t width) const {
  return {element(base, shape.dtype, batch * shape.key_length * stride + key_head * width), stride,
          width};
}

UpcomingRows AttentionPlan::rows_of_next_head(std::initializer_list<Tensor> tensors,
                                              std::int64_t batch, std::int64_t head,
                                              std::int64_t row, std::int64_t rows) const {
  UpcomingRows upcoming;
  const std::int64_t next = batch * shape.heads + head + 1;
  if (next == shape.batch * shape.heads) return upcoming;
  for (const Tensor& tensor : tensors) {
    const std::int64_t length = tensor.of_keys ? shape.key_length : shape.query_length;
    if (row + rows > length) continue;
    const std::int64_t next_batch = next / shape.heads, next_head = next % shape.heads;
    const HeadRows first =
        tensor.of_keys
            ? keys(tensor.base, tensor.row_stride, next_batch, next_head / group, tensor.width)
            : queries(tensor.base, tensor.row_stride, next_batch, next_head, tensor.width);
    const auto at = static_cast<std::size_t>(upcoming.tensors++);
    upcoming.first[at] =
        static_cast<const std::byte*>(element(first.data, shape.dtype, row * first.stride));
    upcoming.row_bytes[at] = first.stride * static_cast<std::int64_t>(size_of(shape.dtype));
    upcoming.head_bytes[at] = first.width * static_cast<std::int64_t>(size_of(shape.dtype));
  }
  return upcoming;
}

HeadRows AttentionPlan::widened(HeadRows rows, std::int64_t count, ScratchBuffer& buffer) const {
  if (shape.dtype == operand) return rows;
  auto* const wide = buffer.get<float>(count * rows.width);
  widen_matrix(rows.data, shape.dtype, rows.stride, wide, rows.width, count, rows.width);
  return {wide, rows.width, rows.width};
}

std::int64_t AttentionPlan::first_key_seen(std::int64_t batch, std::int64_t query) const {
  const std::int64_t position = query + shape.key_length - shape.query_length;
  if (position < 0) return 0;
  const std::int64_t first = shape.window > 0 ? position - shape.window + 1 : 0;
  if (shape.document_starts == nullptr) return std::max<std::int64_t>(first, 0);
  return std::max<std::int64_t>(first, shape.document_starts[batch * shape.key_length + position]);
}

QueryBlock AttentionPlan::block(std::int64_t batch, std::int64_t first_query,
                                std::int64_t rows) const {
  QueryBlock block{.batch = batch, .first = first_query, .rows = rows};
  block.last_key = shape.key_length;
  if (!shape.causal) return block;
  const std::int64_t seen = first_query + rows + shape.key_length - shape.query_length;
  block.last_key = std::clamp<std::int64_t>(seen, 0, shape.key_length);
  if (shape.window == 0 && shape.document_starts == nullptr) return block;
  block.bounded = true;
  for (std::int64_t r = 0; r < rows; ++r) {
    block.bounds[static_cast<std::size_t>(r)] = first_key_seen(batch, first_query + r);
  }
  block.first_key = std::min(block.bounds[0], block.last_key);
  return block;
}

AttentionTile AttentionPlan::tile(const QueryBlock& queries, std::int64_t head,
                                  std::int64_t first_key, std::int64_t columns,
                                  const void* bias) const {
  const std::int64_t row =
      ((shape.first_sample + queries.batch) * shape.heads + head) * shape.query_length +
      queries.first;
  return {.rows = queries.rows,
          .columns = columns,
          .visible = queries.first + shape.key_length - shape.query_length + 1 - first_key,
          .causal = shape.causal,
          .bounds = queries.bounded ? queries.bounds.data() : nullptr,
          .first_key = first_key,
          .scale = static_cast<double>(shape.scale),
          .soft_cap = static_cast<double>(shape.soft_cap),
          .bias = bias == nullptr ? nullptr : element(bias, compute, first_key),
          .pair_bias = shape.bias == nullptr
                           ? nullptr
                           : element(shape.bias, compute,
                                     queries.batch * shape.bias_batch_stride +
                                         head * shape.bias_head_stride +
                                         queries.first * shape.key_length + first_key),
          .pair_bias_stride = shape.key_length,
          .dropout_threshold = dropout_threshold_,
          .kept_scale = 1.0 / (1.0 - static_cast<double>(shape.dropout)),
          .key = shape.key,
          .first_draw = row * shape.key_length + first_key,
          .draw_stride = shape.key_length};
}

const void* AttentionPlan::key_bias(std::int64_t batch, ScratchBuffer& buffer) const {
  if (shape.key_mask == nullptr) return nullptr;
  const std::uint8_t* const mask = shape.key_mask + batch * shape.key_length;
  if (compute == float64) {
    fill_key_bias(mask, shape.key_length, buffer.get<double>(shape.key_length));
    return buffer.get<double>(shape.key_length);
  }
  fill_key_bias(mask, shape.key_length, buffer.get<float>(shape.key_length));
  return buffer.get<float>(shape.key_length);
}

void AttentionPlan::write_rows(const void* sums, void* base, std::int64_t offset,
                               std::int64_t stride, std::int64_t rows, std::int64_t width) const {
  void* const out = element(base, shape.dtype, offset);
  if (shape.dtype == bfloat16 || shape.dtype == float16) {
    narrow_matrix(static_cast<const float*>(sums), width, out, shape.dtype, stride, rows, width);
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(element(out, compute, r * stride), element(sums, compute, r * width),
                static_cast<std::size_t>(width) * size_of(compute));
  }
}

void multiply(const AttentionPlan& plan, const TileProduct& product) {
  matmul({.a = product.a.data,
          .b = product.b.data,
          .c = product.c,
          .m = product.m,
          .n = product.n,
          .k = product.k,
          .lda = product.a.stride,
          .ldb = product.b.stride,
          .ldc = product.n,
          .transpose_a = product.transpose_a,
          .transpose_b = product.transpose_b,
          .accumulate = product.accumulate,
          .dtype = plan.operand,
          .out_dtype = plan.compute});
}

}  // namespace tessera::kernels::cpu
